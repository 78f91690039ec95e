package policy

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mounted is one mount of the table.
type mounted struct {
	dev   string // the file system
	root  string // the path in it that is mounted
	point string // where
}

// mountTable is what is mounted where. Of mounts on top of each other, only the
// uppermost counts.
type mountTable struct {
	points  []string // sorted
	byPoint map[string]mounted
	byDev   map[string][]mounted
}

// mountTableOf is the table that this thread sees.
func mountTableOf() (mountTable, error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return mountTable{}, err
	}
	defer f.Close()
	return parseMounts(f)
}

// parseMounts reads the third to fifth field of each line, see
// proc_pid_mountinfo(5).
func parseMounts(r io.Reader) (mountTable, error) {
	t := mountTable{byPoint: map[string]mounted{}, byDev: map[string][]mounted{}}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			return mountTable{}, fmt.Errorf("mountinfo: line %q", lines.Text())
		}
		m := mounted{fields[2], unescape.Replace(fields[3]), unescape.Replace(fields[4])}
		t.byPoint[m.point] = m
	}
	for point, m := range t.byPoint {
		t.points = append(t.points, point)
		t.byDev[m.dev] = append(t.byDev[m.dev], m)
	}
	slices.Sort(t.points)
	for _, ms := range t.byDev {
		slices.SortFunc(ms, func(a, b mounted) int { return strings.Compare(a.point, b.point) })
	}
	return t, lines.Err()
}

// below are the mount points strictly below path, sorted.
func (t mountTable) below(path string) (points []string) {
	from, _ := slices.BinarySearch(t.points, path+"/")
	for _, point := range t.points[from:] {
		if !strings.HasPrefix(point, path+"/") {
			break
		}
		points = append(points, point)
	}
	return points
}

// others are the further paths that the table has for what is at path.
func (t mountTable) others(path string) (paths []string) {
	for dir := range upward(path) {
		m, ok := t.byPoint[dir]
		if !ok {
			continue
		}
		inside := filepath.Join(m.root, strings.TrimPrefix(path, dir))
		for _, o := range t.byDev[m.dev] {
			if !within(o.root, inside) {
				continue
			}
			if other := filepath.Join(o.point, strings.TrimPrefix(inside, o.root)); other != path {
				paths = append(paths, other)
			}
		}
		return paths
	}
	return nil
}
