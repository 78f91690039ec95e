package gate

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// thrift trades a little time for memory: a gate is mostly idle.
func thrift() {
	debug.SetGCPercent(25)
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
}

// settle gives back what only a start needed: the heap's free pages, and the
// program's own read-only pages, which come back from the page cache as they
// are used. It is an economy; that it fails is no matter.
func settle() {
	debug.FreeOSMemory()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close()
	for sc := bufio.NewScanner(maps); sc.Scan(); {
		fields := strings.Fields(sc.Text())
		if len(fields) < 6 || fields[5] != self || strings.Contains(fields[1], "w") {
			continue
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &from, &to); err == nil {
			unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
		}
	}
}
