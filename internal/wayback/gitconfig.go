package wayback

import (
	"bytes"
	"fmt"
	"strings"
)

// setting is one line of a git configuration: section and key are in lower
// case, the subsection between their dots is as it was written.
type setting struct {
	name  string
	value string
	bare  bool // no equals sign, which git reads as true
}

// unreadable is the place where git would give up.
type unreadable struct{ line int }

func (e *unreadable) Error() string {
	return fmt.Sprintf("cannot be read as git config: line %d", e.line)
}

// parseConfig reads what git would read, the settings before a mistake too.
// Nothing is included. A NUL is a mistake here: git cuts a name at it, and
// would obey what its own listing does not show.
func parseConfig(b []byte) ([]setting, error) {
	p := configParser{in: bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")), line: 1}
	base := ""
	for !p.done() {
		switch c := p.next(); {
		case space(c):
		case c == '#' || c == ';':
			p.comment()
		case c == '[':
			if !p.section() || p.name.String() == "." {
				return p.out, &unreadable{p.line}
			}
			base = p.name.String()
		case alpha(c):
			p.name.Reset()
			p.name.WriteString(base)
			p.name.WriteByte(lower(c))
			if !p.setting() {
				return p.out, &unreadable{p.line}
			}
		default:
			return p.out, &unreadable{p.line}
		}
	}
	return p.out, nil
}

type configParser struct {
	in   []byte
	pos  int
	line int // of what next returns
	last bool
	name strings.Builder
	out  []setting
}

// done says whether the end was read; it counts as the end of a line.
func (p *configParser) done() bool { return p.last }

// next is the next character; CRLF is one end of line.
func (p *configParser) next() byte {
	if p.pos > 0 && p.in[p.pos-1] == '\n' && !p.last {
		p.line++
	}
	if p.pos >= len(p.in) {
		p.last = true
		return '\n'
	}
	c := p.in[p.pos]
	p.pos++
	if c == '\r' && p.pos < len(p.in) && p.in[p.pos] == '\n' {
		p.pos++
		return '\n'
	}
	return c
}

func (p *configParser) comment() {
	for p.next() != '\n' {
	}
}

// section reads the rest of a header, and leaves it with its dot in name.
func (p *configParser) section() bool {
	p.name.Reset()
	for {
		switch c := p.next(); {
		case p.last:
			return false
		case c == ']':
			p.name.WriteByte('.')
			return true
		case space(c):
			return p.subsection(c)
		case !keychar(c) && c != '.':
			return false
		default:
			p.name.WriteByte(lower(c))
		}
	}
}

func (p *configParser) subsection(c byte) bool {
	for ; space(c); c = p.next() {
		if c == '\n' {
			return false
		}
	}
	if c != '"' {
		return false
	}
	p.name.WriteByte('.')
	for {
		c := p.next()
		if c == '"' {
			break
		}
		if c == '\\' {
			c = p.next()
		}
		if c == '\n' || c == 0 {
			return false
		}
		p.name.WriteByte(c)
	}
	p.name.WriteByte('.')
	return p.next() == ']'
}

// setting reads the rest of a key and its value.
func (p *configParser) setting() bool {
	c := p.next()
	for ; !p.last && keychar(c); c = p.next() {
		p.name.WriteByte(lower(c))
	}
	for c == ' ' || c == '\t' {
		c = p.next()
	}
	if c == '\n' {
		p.out = append(p.out, setting{name: p.name.String(), bare: true})
		return true
	}
	if c != '=' {
		return false
	}
	value, ok := p.value()
	if ok {
		p.out = append(p.out, setting{name: p.name.String(), value: value})
	}
	return ok
}

func (p *configParser) value() (string, bool) {
	var v strings.Builder
	quoted, spaces := false, 0
	for {
		c := p.next()
		switch {
		case c == 0:
			return "", false
		case c == '\n':
			return v.String(), !quoted
		case space(c) && !quoted:
			if v.Len() > 0 {
				spaces++
			}
			continue
		case (c == '#' || c == ';') && !quoted:
			p.comment()
			return v.String(), true
		}
		v.WriteString(strings.Repeat(" ", spaces))
		spaces = 0
		switch c {
		case '"':
			quoted = !quoted
		case '\\':
			switch c = p.next(); c {
			case '\n':
			case 't':
				v.WriteByte('\t')
			case 'b':
				v.WriteByte('\b')
			case 'n':
				v.WriteByte('\n')
			case '\\', '"':
				v.WriteByte(c)
			default:
				return "", false
			}
		default:
			v.WriteByte(c)
		}
	}
}

func space(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func alpha(c byte) bool { return 'a' <= lower(c) && lower(c) <= 'z' }

func keychar(c byte) bool { return alpha(c) || '0' <= c && c <= '9' || c == '-' }

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// split takes a name apart. A name without a subsection has none, which is not
// the empty one.
func split(name string) (section, sub, key string, hasSub bool) {
	first, last := strings.IndexByte(name, '.'), strings.LastIndexByte(name, '.')
	switch {
	case first < 0:
		return "", "", name, false
	case first == last:
		return name[:first], "", name[first+1:], false
	}
	return name[:first], name[first+1 : last], name[last+1:], true
}
