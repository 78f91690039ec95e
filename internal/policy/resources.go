package policy

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

const (
	minMemory = 16 << 20 // bytes: below it no shell and no checker get started
	maxMemory = 1 << 50  // bytes: more than a machine has, and far from overflowing

	minNanoCPUs = 1e9 / 100 // the shortest time slice that the kernel keeps (1 ms of 100)
	maxCPUs     = 1024      // more than a machine has

	minPids = 16      // the harness, its shell and what that starts
	maxPids = 4194304 // PID_MAX_LIMIT of the kernel
)

// Sizes are in binary units, as the engine's own options have them.
var units = []struct {
	letter string
	bytes  int64
}{{"t", 1 << 40}, {"g", 1 << 30}, {"m", 1 << 20}, {"k", 1 << 10}}

var (
	memorySize = regexp.MustCompile(`^([1-9][0-9]*)([kmgt])$`)
	cpuCount   = regexp.MustCompile(`^(0|[1-9][0-9]*)(?:\.([0-9]{1,9}))?$`)

	// looseSize is a size as people also write it.
	looseSize = regexp.MustCompile(`^([0-9]+)(?:\.([0-9]+))? ?([kmgt]?)(?:i?b)?$`)
)

const noBound = "leave it out for no bound"

// memory is an amount in bytes.
func (d *decoder) memory(n *yaml.Node, path string) int64 {
	written := n.Value
	if number := n.Kind == yaml.ScalarNode && n.Style == 0 && describe(n) == "a number"; !number {
		var ok bool
		if written, ok = d.text(n, path); !ok {
			return 0
		}
	}
	m := memorySize.FindStringSubmatch(written)
	if m == nil {
		hint, message := properSize(written), "%s: %s is not a size: a whole number and one of k, m, g, t"
		if written == "-1" {
			hint = noBound
		} else if digits.MatchString(written) {
			message = "%s: %s has no unit: a size is a whole number and one of k, m, g, t"
		}
		d.errorf(n, hint, message, path, shown(n))
		return 0
	}
	amount, err := strconv.ParseInt(m[1], 10, 64)
	for _, u := range units {
		if u.letter != m[2] {
			continue
		}
		switch {
		case err != nil, amount > maxMemory/u.bytes:
			d.errorf(n, noBound, "%s: %s is more than any machine has", path, written)
		case amount*u.bytes < minMemory:
			d.errorf(n, "", "%s: %s is too little to start anything: at least 16m", path, written)
		default:
			return amount * u.bytes
		}
	}
	return 0
}

// properSize shows how a size is written that somebody wrote otherwise.
func properSize(s string) string {
	m := looseSize.FindStringSubmatch(strings.ToLower(s))
	if m == nil || len(m[1]) > 15 || len(m[2]) > 3 {
		return "write it like 8g or 512m"
	}
	amount, _ := strconv.ParseInt(m[1], 10, 64)
	part, _ := strconv.ParseInt((m[2] + "000")[:3], 10, 64) // thousandths
	scale := int64(1)
	for _, u := range units {
		if u.letter == m[3] {
			scale = u.bytes
		}
	}
	if amount > maxMemory/scale {
		return "write it like 8g or 512m"
	}
	size := amount*scale + part*scale/1000
	if size == 0 {
		return noBound
	}
	for _, u := range units {
		if size >= minMemory && size%u.bytes == 0 {
			return fmt.Sprintf("write %d%s", size/u.bytes, u.letter)
		}
	}
	return "write it like 8g or 512m"
}

// cpus is a number of processors in thousand-millionths of one, read digit by
// digit: no fraction is rounded.
func (d *decoder) cpus(n *yaml.Node, path string) int64 {
	s, ok := d.plainNumber(n, path)
	if !ok {
		return 0
	}
	m := cpuCount.FindStringSubmatch(s)
	if m == nil {
		hint := "write it like 4 or 0.5"
		if fixed := "0" + s; strings.HasPrefix(s, ".") && cpuCount.MatchString(fixed) {
			hint = "write " + fixed
		}
		d.errorf(n, hint, "%s: %s is not a number of processors: digits, and up to nine after a point", path, shown(n))
		return 0
	}
	whole, err := strconv.ParseInt(m[1], 10, 64)
	part, _ := strconv.ParseInt((m[2] + "000000000")[:9], 10, 64)
	switch nano := whole*1e9 + part; {
	case err != nil || whole > maxCPUs || whole == maxCPUs && part > 0:
		d.errorf(n, noBound, "%s: %s is more than any machine has: at most %d", path, s, maxCPUs)
	case nano == 0:
		d.errorf(n, noBound, "%s: %s would run nothing", path, s)
	case nano < minNanoCPUs:
		d.errorf(n, "", "%s: %s is less than the kernel can share out: at least 0.01", path, s)
	default:
		return nano
	}
	return 0
}

func (d *decoder) pids(n *yaml.Node, path string) int64 {
	s, ok := d.plainNumber(n, path)
	if !ok {
		return 0
	}
	if !digits.MatchString(s) {
		d.errorf(n, fmt.Sprintf("write it like %d", DefaultPids), "%s: %s is not a whole number in plain digits", path, shown(n))
		return 0
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < minPids || v > maxPids {
		d.errorf(n, "", "%s: %s is not from %d to %d", path, s, minPids, maxPids)
		return 0
	}
	return v
}

// plainNumber is the text of a number that is not in quotes.
func (d *decoder) plainNumber(n *yaml.Node, path string) (string, bool) {
	switch {
	case !d.is(n, path, "a number", yaml.ScalarNode):
		return "", false
	case n.Style != 0:
		hint := ""
		if cpuCount.MatchString(n.Value) {
			hint = "write " + n.Value
		}
		d.errorf(n, hint, "%s must be a number, this is the string %s", path, shown(n))
		return "", false
	}
	return n.Value, true
}
