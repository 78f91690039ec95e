package spec

import (
	"net/netip"
	"regexp"
	"strings"
	"unicode"
)

// secretSure is how long a value is that is looked for whatever it is made of,
// in bytes.
const secretSure = 16

// The shapes of ordinary settings, however long they are: they stand in files and in
// settings that have nothing to do with them.
var (
	hostShape    = regexp.MustCompile(`^([a-z][a-z0-9+]*://)?([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?(:[0-9]{1,5})?/?$`)
	pathShape    = regexp.MustCompile(`^/(bin|boot|dev|etc|home|lib|lib64|media|mnt|opt|proc|root|run|sbin|srv|sys|tmp|usr|var)(/[^/\x00]*)*$`)
	zoneShape    = regexp.MustCompile(`^[A-Z][a-z]+(/[A-Z][A-Za-z]*([_-][A-Za-z]+)*){1,2}$`)
	localeShape  = regexp.MustCompile(`^[a-z]{2,3}_[A-Z]{2}(\.[A-Za-z0-9-]{3,10})?$`)
	versionShape = regexp.MustCompile(`^[a-z]+([-._:/][a-z]+)*([-._:/]v?[0-9]{1,2}[a-z]?)+([-._:/][a-z]+)*(-20[0-9]{6})?$`)
)

// TooPlain is why a value is not looked for as a secret, in words; empty if it is.
// One shorter than SecretMin, a plain word, a host, a path, an address, a locale and
// the like are found in files that have nothing to do with them.
func TooPlain(value string) string {
	switch {
	case len(value) < SecretMin:
		return "short"
	case len(value) < secretSure && classes(value) < 3:
		return "a plain word"
	case isAddress(value):
		return "an address"
	case isHost(value):
		return "the name of a host"
	case isPath(value):
		return "a path"
	case zoneShape.MatchString(value):
		return "a time zone"
	case localeShape.MatchString(value):
		return "a locale"
	case versionShape.MatchString(value):
		return "a name with a version"
	}
	return ""
}

// classes counts the kinds of characters of a value: small letters, capitals, digits
// and everything else.
func classes(value string) int {
	var seen [4]int
	for _, r := range value {
		switch {
		case unicode.IsLower(r):
			seen[0] = 1
		case unicode.IsUpper(r):
			seen[1] = 1
		case unicode.IsDigit(r):
			seen[2] = 1
		default:
			seen[3] = 1
		}
	}
	return seen[0] + seen[1] + seen[2] + seen[3]
}

func isAddress(value string) bool {
	_, addr := netip.ParseAddr(value)
	_, both := netip.ParseAddrPort(value)
	_, prefix := netip.ParsePrefix(value)
	return addr == nil || both == nil || prefix == nil
}

// isHost says whether a value is a name of the DNS with more than one label, or any
// with a scheme or a port, and nothing else that could be a secret: neither a user nor
// a path, and a last label that is no number.
func isHost(value string) bool {
	if !hostShape.MatchString(value) {
		return false
	}
	scheme, name, found := strings.Cut(strings.TrimSuffix(value, "/"), "://")
	if !found {
		name = scheme
	}
	name, port, _ := strings.Cut(name, ":")
	last := name[strings.LastIndex(name, ".")+1:]
	if strings.ContainsFunc(last, unicode.IsDigit) && (found || port == "") {
		return false
	}
	return found || port != "" || strings.Contains(name, ".")
}

// isPath says whether a value is a path below one of the directories that every
// system has, or several of them, with a colon between two.
func isPath(value string) bool {
	for p := range strings.SplitSeq(value, ":") {
		if !pathShape.MatchString(p) {
			return false
		}
	}
	return true
}
