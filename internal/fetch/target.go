package fetch

import (
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/corral-sandbox/corral/internal/domain"
	"github.com/corral-sandbox/corral/internal/spec"
)

// maxURL bounds a URL before anything looks into it, in bytes. Browsers and servers
// agree on no bound; few pages are beyond 2,000.
const maxURL = 8 << 10

// target is a page to ask for. Its URL was put together anew from parts that were
// read once, so no two programs can read it differently: lower-case scheme, host in
// canonical ASCII, neither user nor fragment.
type target struct {
	url  *url.URL
	name string     // a DNS name, or
	addr netip.Addr // an address that was written in its place
	port uint16
}

var (
	schemeWord = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:`)
	numberWord = regexp.MustCompile(`^(0x[0-9a-f]*|[0-9]+)$`)
	portWord   = regexp.MustCompile(`^[1-9][0-9]{0,4}$`)
)

// parse reads a URL strictly, and looks nothing up. The errors are failures.
func parse(s string, ports []uint16) (target, error) {
	invalid := func(format string, args ...any) (target, error) {
		return target{}, failf(spec.FetchInvalidURL, format, args...)
	}
	switch {
	case s == "":
		return invalid("there is no URL")
	case len(s) > maxURL:
		return invalid("a URL has at most %d bytes, this has %d", maxURL, len(s))
	case !utf8.ValidString(s):
		return invalid("it is not valid UTF-8")
	case strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }):
		return invalid("it holds white space or control characters")
	}
	scheme := strings.ToLower(strings.TrimSuffix(schemeWord.FindString(s), ":"))
	switch scheme {
	case "http", "https":
	case "":
		return invalid("it does not begin with http:// or https://")
	default:
		return target{}, failf(spec.FetchScheme, "%s: only http and https are fetched", scheme)
	}
	rest, ok := strings.CutPrefix(s[len(scheme)+1:], "//")
	if !ok {
		return invalid("no // follows %s:", scheme)
	}
	authority, rest := splitAt(rest, "/?#")
	before, _ := splitAt(rest, "?#")
	switch {
	case authority == "":
		return invalid("it names no host")
	case strings.Contains(authority, "@"):
		return invalid("it holds a user name, which nothing is asked with")
	case strings.Contains(authority, "%"):
		return invalid("its host is percent-encoded")
	case strings.Contains(authority+before, `\`):
		return invalid("it holds a backslash, which some programs read as a slash")
	}
	t := target{port: 80}
	if scheme == "https" {
		t.port = 443
	}
	standard := t.port
	host, port, hasPort := strings.Cut(authority, ":")
	if inner, bracketed := strings.CutPrefix(authority, "["); bracketed {
		inner, after, closed := strings.Cut(inner, "]")
		a, err := netip.ParseAddr(inner)
		if !closed || err != nil || !a.Is6() || a.Zone() != "" {
			return invalid("what stands in brackets is no IPv6 address")
		}
		host, t.addr = "["+a.String()+"]", a
		port, hasPort = strings.CutPrefix(after, ":")
		if !hasPort && after != "" {
			return invalid("something follows the address in brackets")
		}
	} else if a, err := netip.ParseAddr(host); err == nil && a.Is4() && a.String() == host {
		t.addr = a
	}
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || !portWord.MatchString(port) {
			return invalid("%q is not a port", cut(port, 40))
		}
		t.port = uint16(n)
	}
	if !t.addr.IsValid() {
		name, err := domain.Parse(host)
		switch plain := strings.TrimSuffix(strings.ToLower(host), "."); {
		case numberWord.MatchString(plain):
			return invalid("a number stands for its host, which only some programs take for an address")
		case err != nil && !strings.Contains(plain, ".") && domain.NotPublic(plain+".com") == "":
			return target{}, failf(spec.FetchBlocked, "%s: a single label means a host of this network", plain)
		case err != nil:
			return invalid("%v", err)
		}
		if why := domain.NotPublic(name); why != "" {
			return target{}, failf(spec.FetchBlocked, "%s: %s", name, why)
		}
		host, t.name = name, name
	}
	if !slices.Contains(ports, t.port) {
		return target{}, failf(spec.FetchBlocked, "port %d: the settings have --ports %s", t.port, portList(ports))
	}
	if t.port != standard {
		host += ":" + strconv.Itoa(int(t.port))
	}
	rest, _ = splitAt(rest, "#")
	if !strings.HasPrefix(rest, "/") {
		rest = "/" + rest
	}
	u, err := url.Parse(scheme + "://" + host + percented(rest))
	switch {
	case err != nil:
		return invalid("its path cannot be read")
	case u.Host != host || u.User != nil || u.Opaque != "" || u.Scheme != scheme:
		return invalid("it can be read in two ways")
	}
	t.url = u
	return t, nil
}

// escapes are what is an escape, or looks like the beginning of one.
var escapes = regexp.MustCompile(`%([0-9A-Fa-f]{2})?`)

// percented is a URL in whose path every % begins an escape: people write 100% there. Behind
// the path, what is not ASCII is escaped, as it is in paths: some of it nobody sees.
func percented(s string) string {
	path, rest := splitAt(s, "?#")
	return escapes.ReplaceAllStringFunc(path, func(e string) string {
		if e == "%" {
			return "%25"
		}
		return e
	}) + beyondASCII.ReplaceAllStringFunc(rest, url.PathEscape)
}

var beyondASCII = regexp.MustCompile(`[^\x00-\x7f]+`)

// splitAt cuts s before the first of the characters.
func splitAt(s, chars string) (before, rest string) {
	if i := strings.IndexAny(s, chars); i >= 0 {
		return s[:i], s[i:]
	}
	return s, ""
}

func portList(ports []uint16) string {
	var words []string
	for _, p := range ports {
		words = append(words, strconv.Itoa(int(p)))
	}
	return strings.Join(words, ",")
}

// next is where a redirect leads, read from scratch like any other URL.
func (t target) next(location string, ports []uint16) (target, error) {
	broken := func(format string, args ...any) (target, error) {
		return target{}, failf(spec.FetchBadRedirect, format, args...)
	}
	// Servers write blanks in paths; in a host the escape is refused as well.
	location = strings.ReplaceAll(strings.Trim(location, " \t"), " ", "%20")
	before, _ := splitAt(location, "?#")
	switch {
	case location == "":
		return broken("it does not say where")
	case len(location) > maxURL:
		return broken("a URL has at most %d bytes, this has %d", maxURL, len(location))
	case strings.Contains(before, `\`):
		return broken("it holds a backslash, which some programs read as a slash")
	case strings.HasPrefix(location, "//"):
		location = t.url.Scheme + ":" + location
	case !schemeWord.MatchString(location):
		ref, err := url.Parse(percented(location))
		if err != nil || ref.Host != "" || ref.Scheme != "" || ref.Opaque != "" {
			return broken("it cannot be read")
		}
		location = t.url.ResolveReference(ref).String()
	}
	to, err := parse(location, ports)
	if f, ok := err.(*failure); ok && f.reason != spec.FetchBlocked {
		return broken("%s", f.detail)
	}
	if err != nil {
		return target{}, err
	}
	if t.url.Scheme == "https" && to.url.Scheme == "http" {
		return broken("it leads from https to http")
	}
	return to, nil
}
