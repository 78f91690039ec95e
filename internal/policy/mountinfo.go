package policy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/corral-sandbox/corral/internal/mountinfo"
)

// mountTable is what is mounted where. Of mounts on top of each other, only the
// uppermost counts.
type mountTable struct {
	points  []string // sorted
	byPoint map[string]mountinfo.Mount
	byDev   map[string][]mountinfo.Mount
}

// mountTableOf is the table that this thread sees.
func mountTableOf() (mountTable, error) {
	b, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return mountTable{}, err
	}
	return parseMounts(string(b))
}

func parseMounts(text string) (mountTable, error) {
	all, err := mountinfo.Parse(text)
	if err != nil {
		return mountTable{}, err
	}
	t := mountTable{byPoint: map[string]mountinfo.Mount{}, byDev: map[string][]mountinfo.Mount{}}
	for _, m := range all {
		t.byPoint[m.Target] = m
	}
	for point, m := range t.byPoint {
		t.points = append(t.points, point)
		t.byDev[m.Device] = append(t.byDev[m.Device], m)
	}
	slices.Sort(t.points)
	for _, ms := range t.byDev {
		slices.SortFunc(ms, func(a, b mountinfo.Mount) int { return strings.Compare(a.Target, b.Target) })
	}
	return t, nil
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
		inside := filepath.Join(m.Root, strings.TrimPrefix(path, dir))
		for _, o := range t.byDev[m.Device] {
			if !within(o.Root, inside) {
				continue
			}
			if other := filepath.Join(o.Target, strings.TrimPrefix(inside, o.Root)); other != path {
				paths = append(paths, other)
			}
		}
		return paths
	}
	return nil
}
