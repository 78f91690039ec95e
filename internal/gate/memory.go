package gate

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// thrift trades a little time for memory: a gate is mostly idle.
func thrift() {
	debug.SetGCPercent(25)
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
}

// settle gives back what only a start needed: the heap's free pages, and the
// program's own.
func settle() {
	debug.FreeOSMemory()
	unload()
}

// unload gives the program's own read-only pages back, which come back from the
// page cache as they are used: a tenth of a millisecond's work after two seconds
// of rest. It is an economy; that it fails is no matter.
func unload() {
	for _, s := range ownPages() {
		unix.Syscall(unix.SYS_MADVISE, s.from, s.to-s.from, unix.MADV_DONTNEED)
	}
}

type span struct{ from, to uintptr }

// ownPages are where the program itself is mapped and cannot be written. That
// stays as it is.
var ownPages = sync.OnceValue(func() (spans []span) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil
	}
	defer maps.Close()
	for sc := bufio.NewScanner(maps); sc.Scan(); {
		fields := strings.Fields(sc.Text())
		if len(fields) < 6 || fields[5] != self || strings.Contains(fields[1], "w") {
			continue
		}
		var s span
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &s.from, &s.to); err == nil {
			spans = append(spans, s)
		}
	}
	return spans
})
