// Package domain is the grammar of the names that a fence can open. In goes a
// name as a person writes it, out comes its canonical form or what is wrong
// with it. It looks nothing up.
package domain

import (
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/net/idna"
	"golang.org/x/text/unicode/norm"

	"github.com/corral-sandbox/corral/internal/exit"
)

// RFC 1035, section 2.3.4, in octets; a name without its trailing dot.
const (
	maxName  = 253
	maxLabel = 63
)

// otherDots are the full stops that IDNA takes for one (UTS 46, section 2.3).
const otherDots = "。．｡"

const listNames = "corral pins the addresses of names: list each name"

var (
	labelWord  = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?$`)
	numberWord = regexp.MustCompile(`^([0-9]+|0x[0-9a-f]*)$`) // what URL parsers take for a part of an IPv4 address
	digits     = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)
	schemeWord = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:?//`)

	strict = idna.New(idna.MapForLookup(), idna.Transitional(false), idna.StrictDomainName(true),
		idna.BidiRule(), idna.CheckJoiners(true), idna.CheckHyphens(true), idna.VerifyDNSLength(true))
)

// Parse is the canonical form of a name as a person writes it. One
// trailing dot and upper case are normalised, U-labels become A-labels.
// Whatever is not one exact name of at least two labels is an *exit.Error,
// which says what it is instead and what to write.
func Parse(s string) (string, error) {
	if canonical(s) {
		return s, nil
	}
	return parse(s)
}

// Unicode is a name in canonical form as people read it: with U-labels, if it
// has any.
func Unicode(name string) string {
	if strings.Contains(name, "xn--") {
		if u, err := strict.ToUnicode(name); err == nil {
			return u
		}
	}
	return name
}

// canonical reports whether s is beyond doubt a name in canonical form, as
// nearly all are: what it does not see at a glance, parse looks into.
func canonical(s string) bool {
	labels, start := 0, 0
	for i := 0; i <= len(s); i++ {
		switch {
		case i < len(s) && s[i] != '.':
			if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return false
			}
			continue
		case i == start, i-start > maxLabel, s[start] == '-', s[i-1] == '-', strings.HasPrefix(s[start:i], "xn--"):
			return false
		case i == len(s) && (labels == 0 || s[start] <= '9'): // the last label
			return false
		}
		labels, start = labels+1, i+1
	}
	return len(s) <= maxName
}

func parse(s string) (string, error) {
	refuse := func(hint, format string, args ...any) (string, error) {
		return "", exit.Invalidf(hint, format, args...)
	}
	host, port, hasPort := strings.Cut(s, ":")
	name := strings.TrimSuffix(s, ".")
	switch {
	case name == "":
		return refuse("", "the name is empty")
	case len(s) > 4*maxName:
		return refuse("", "a name has at most %d characters, this has %d", maxName, len(s))
	case strings.ContainsFunc(s, unicode.IsSpace):
		return refuse(instead(s, strings.TrimSpace(s)), "%q holds white space", s)
	case schemeWord.MatchString(s) || strings.HasPrefix(s, "//"):
		hint := ""
		if u, err := url.Parse(s); err == nil {
			hint = instead(s, u.Hostname())
		}
		return refuse(hint, "%q is a URL, not a name", s)
	case isAddress(s):
		return refuse("write the name that it belongs to", "%q is an IP address, not a name", s)
	case isPrefix(s):
		return refuse(listNames, "%q is a range of addresses, not a name", s)
	case strings.Contains(s, "/"):
		host, _, _ := strings.Cut(s, "/")
		return refuse(instead(s, host), "%q holds a path: the fence opens hosts, not pages", s)
	case strings.Contains(s, "@"):
		return refuse(instead(s, s[strings.LastIndexByte(s, '@')+1:]), "%q holds a user name", s)
	case strings.Contains(s, "*") || len(s) > 1 && strings.Trim(s, ".") == s[1:]:
		return refuse(listNames, "%q is a wildcard", s)
	case hasPort:
		hint := ""
		if d, err := Parse(host); err == nil && digits.MatchString(port) {
			hint = "write {domain: " + d + ", ports: [" + port + "]}"
		}
		return refuse(hint, "%q: a port does not belong to the name", s)
	case strings.ContainsAny(s, otherDots):
		return refuse(instead(s, strings.NewReplacer("。", ".", "．", ".", "｡", ".").Replace(s)), "%q holds a full stop that is not .", s)
	case numberWord.MatchString(strings.ToLower(name[strings.LastIndexByte(name, '.')+1:])):
		return refuse("write the name that it belongs to", "%q ends in a number, as an IP address does", s)
	case !strings.Contains(name, "."):
		return refuse("write the full name, like git.corp.example", "%q is a single label: what it means depends on the machine", s)
	}

	labels := strings.Split(name, ".")
	for i, label := range labels {
		a, reason := parseLabel(label)
		if reason != "" {
			return refuse("", "%q: label %q %s", s, label, reason)
		}
		labels[i] = a
	}
	if last := labels[len(labels)-1]; strings.HasPrefix(last, "xn--") && !strings.ContainsFunc(Unicode(last), func(r rune) bool { return !unicode.IsNumber(r) }) {
		return refuse("write the name that it belongs to", "%q ends in a number, as an IP address does", s)
	}
	name = strings.Join(labels, ".")
	if len(name) > maxName {
		return refuse("", "a name has at most %d characters, this has %d", maxName, len(name))
	}
	return name, nil
}

// instead hints at that part of what was written, if it would be a name.
func instead(written, part string) string {
	if part == written { // it is being refused
		return ""
	}
	if d, err := Parse(part); err == nil {
		return "write " + d
	}
	return ""
}

func isPrefix(s string) bool {
	_, err := netip.ParsePrefix(s)
	return err == nil
}

func isAddress(s string) bool {
	s = strings.TrimSuffix(s, ".")
	if inner, ok := strings.CutPrefix(s, "["); ok {
		s, _, _ = strings.Cut(inner, "]")
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	_, err := netip.ParseAddrPort(s)
	return err == nil
}

// parseLabel is the canonical form of one label, or why it has none.
func parseLabel(s string) (label, reason string) {
	lower := strings.ToLower(s)
	ascii := !strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII })
	switch {
	case s == "":
		return "", "is empty"
	case len(s) > maxLabel && ascii:
		return "", "is longer than 63 characters"
	case strings.Trim(s, "_") == "":
		return "", "is nothing but underscores"
	case ascii && !strings.HasPrefix(lower, "xn--"):
		if !labelWord.MatchString(lower) {
			return "", "must be of letters, digits, - and _, with no - at either end"
		}
		return lower, ""
	}
	u, a := norm.NFC.String(strings.ToLower(norm.NFC.String(s))), lower
	var err error
	if ascii {
		u, err = strict.ToUnicode(a)
	} else {
		a, err = strict.ToASCII(u)
	}
	switch back, errBack := strict.ToUnicode(a); {
	case len(a) > maxLabel:
		return "", "is longer than 63 characters as an A-label"
	case err != nil || errBack != nil:
		return "", "is not a valid internationalised label"
	case back != u:
		return "", "holds characters that stand for others"
	}
	if again, err := strict.ToASCII(u); err != nil || again != a {
		return "", "is not the A-label that it decodes to"
	}
	if used := scripts(u); !together(used) {
		return "", "mixes scripts (" + strings.Join(used, ", ") + "), so that it can pass for another"
	}
	return a, ""
}

// scripts are the writing systems of the letters of s, in order of name.
func scripts(s string) (names []string) {
	for _, r := range s {
		for name, table := range unicode.Scripts {
			if name != "Common" && name != "Inherited" && unicode.Is(table, r) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// together reports whether one label may hold all of these: a single script,
// or one of the combinations of UTS 39, "highly restrictive".
func together(scripts []string) bool {
	if len(scripts) <= 1 {
		return true
	}
	for _, set := range [][]string{
		{"Latin", "Han", "Hiragana", "Katakana"},
		{"Latin", "Han", "Bopomofo"},
		{"Latin", "Han", "Hangul"},
	} {
		if !slices.ContainsFunc(scripts, func(s string) bool { return !slices.Contains(set, s) }) {
			return true
		}
	}
	return false
}
