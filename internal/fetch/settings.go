package fetch

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/spelling"
)

// settingPrefix begins the variables that are corral-fetch's: --max-body is
// CORRAL_FETCH_MAX_BODY.
const settingPrefix = "CORRAL_FETCH_"

// settings are all that a server goes by.
type settings struct {
	Listen                    netip.AddrPort
	Ports                     []uint16
	UserAgent                 string
	Resolvers                 []netip.AddrPort
	Never                     []netip.Prefix
	CAFile                    string
	Slots, Redirects          int
	Connect, FirstByte, Total time.Duration
	Body, Text                int
}

// defaults are the limits too, which can be lowered and not raised: with more, six
// pages at once would not fit into the memory that is promised.
func defaults() settings {
	return settings{
		Listen:    netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), spec.FetchPort),
		Ports:     []uint16{80, 443},
		UserAgent: "corral-fetch/" + spec.Release(),
		Slots:     6,
		Redirects: 5,
		Connect:   10 * time.Second,
		FirstByte: 20 * time.Second,
		Total:     45 * time.Second,
		Body:      5 << 20,
		Text:      2 << 20,
	}
}

// setting is one option, and the variable that stands for it.
type setting struct {
	name, meaning, form string
	fallback            string
	read                func(*settings, string) error
}

const resolvConf = "/etc/resolv.conf"

var options = []setting{
	{"listen", "where to be asked", "`0.0.0.0:8766`", "`127.0.0.1:8766`, in the image `0.0.0.0:8766`", func(s *settings, v string) (err error) {
		s.Listen, err = netip.ParseAddrPort(v)
		switch host, port, splitErr := net.SplitHostPort(v); {
		case err == nil && s.Listen.Port() == 0:
			return beyond("port 0 is any port, which nobody would know: it takes one from 1 to 65535")
		case err == nil && s.Listen.Addr().Zone() == "" && !s.Listen.Addr().Is4In6():
			return nil
		case splitErr == nil && host == "" && portWord.MatchString(port):
			return fmt.Errorf("it has no address: 0.0.0.0:%s is every IPv4 address, 127.0.0.1:%[1]s this machine alone", port)
		case splitErr == nil && strings.EqualFold(host, "localhost"):
			return errors.New("it takes addresses, not names")
		}
		return errors.New("it is not an IP address with a port")
	}},
	{"ports", "ports at which pages are fetched", "`80,443`", "`80,443`", func(s *settings, v string) error {
		s.Ports = nil
		return each(v, func(item string) error {
			n, err := strconv.ParseUint(item, 10, 16)
			if err != nil || !portWord.MatchString(item) {
				return fmt.Errorf("%q is not a port", item)
			}
			s.Ports = append(s.Ports, uint16(n))
			return nil
		})
	}},
	{"user-agent", "what servers are told of who asks", "`corral-fetch/1.0`", "`corral-fetch/VERSION`", func(s *settings, v string) error {
		if !regexp.MustCompile(`^[!-~]([ -~]{0,198}[!-~])?$`).MatchString(v) {
			return errors.New("it is of 1 to 200 printable ASCII characters")
		}
		s.UserAgent = v
		return nil
	}},
	{"resolvers", "name servers to ask, IPv4, with a port or without", "`192.0.2.53,192.0.2.54:5353`", "those of " + resolvConf, func(s *settings, v string) error {
		s.Resolvers = nil
		return each(v, func(item string) error {
			at, err := netip.ParseAddrPort(item)
			if a, addrErr := netip.ParseAddr(item); addrErr == nil {
				at, err = netip.AddrPortFrom(a, 53), nil
			}
			if err != nil || !at.Addr().Is4() || at.Port() == 0 {
				return fmt.Errorf("%q is not the IPv4 address of a name server", item)
			}
			s.Resolvers = append(s.Resolvers, at)
			return nil
		})
	}},
	{"never", "public addresses that are not fetched from either, as those of your own machines", "`192.0.2.0/24,2001:db8::7`", "none", func(s *settings, v string) error {
		s.Never = nil
		return each(v, func(item string) error {
			p, err := netip.ParsePrefix(item)
			if a, addrErr := netip.ParseAddr(item); addrErr == nil && a.Zone() == "" {
				p, err = netip.PrefixFrom(a, a.BitLen()), nil
			}
			if err != nil || p.Addr().Is4In6() {
				return fmt.Errorf("%q is neither an address nor a range like 192.0.2.0/24", item)
			}
			s.Never = append(s.Never, p.Masked())
			return nil
		})
	}},
	{"ca-file", "certificates to trust beside the system's, PEM, where a company looks into TLS", "`/etc/ssl/company.pem`", "none", func(s *settings, v string) error {
		s.CAFile = v
		if _, err := s.roots(); err != nil {
			return beyond(err.Error())
		}
		return nil
	}},
	{"slots", "pages at a time", "`6`", "`6`, the most", atMost(func(s *settings) *int { return &s.Slots }, 1)},
	{"max-redirects", "redirects that are followed", "`5`", "`5`, the most", atMost(func(s *settings) *int { return &s.Redirects }, 0)},
	{"max-body", "bytes of a body, inflated", "`5242880`", "`5242880`, the most", atMost(func(s *settings) *int { return &s.Body }, 1)},
	{"max-text", "bytes of the text that is returned", "`2097152`", "`2097152`, the most", atMost(func(s *settings) *int { return &s.Text }, 1)},
	{"connect-timeout", "for a lookup, for a connection, for TLS", "`10s`", "`10s`, the most", within(func(s *settings) *time.Duration { return &s.Connect }, time.Millisecond)},
	{"first-byte-timeout", "from the request to the end of the response's headers", "`20s`", "`20s`, the most", within(func(s *settings) *time.Duration { return &s.FirstByte }, time.Millisecond)},
	{"total-timeout", "for a page, redirects included", "`45s`", "`45s`, the most", within(func(s *settings) *time.Duration { return &s.Total }, time.Second)},
}

func isOption(name string) bool {
	return slices.ContainsFunc(options, func(o setting) bool { return o.name == name })
}

func (o setting) variable() string {
	return settingPrefix + strings.ToUpper(strings.ReplaceAll(o.name, "-", "_"))
}

func atMost(of func(*settings) *int, least int) func(*settings, string) error {
	return func(s *settings, v string) error {
		d := defaults()
		n, err := strconv.Atoi(v)
		most := *of(&d)
		switch {
		case err != nil && !errors.Is(err, strconv.ErrRange):
			return fmt.Errorf("it is a number from %d to %d", least, most)
		case err != nil || n < least || n > most:
			return beyond(fmt.Sprintf("it is a number from %d to %d", least, most))
		}
		*of(s) = n
		return nil
	}
}

// bareWord is a number that nobody said the unit of.
var bareWord = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

// beyond is a mistake in a value that is written as it should be.
type beyond string

func (b beyond) Error() string { return string(b) }

func within(of func(*settings) *time.Duration, least time.Duration) func(*settings, string) error {
	return func(s *settings, v string) error {
		def := defaults()
		d, err := time.ParseDuration(v)
		most := *of(&def)
		switch {
		case bareWord.MatchString(v) && v != "0":
			return fmt.Errorf("it has no unit: %ss is seconds", v)
		case err != nil:
			return fmt.Errorf("it is a time from %v to %v", least, most)
		case d < least || d > most:
			return beyond(fmt.Sprintf("it is a time from %v to %v", least, most))
		}
		*of(s) = d
		return nil
	}
}

// each reads a list, and says all that is wrong in it.
func each(list string, read func(item string) error) error {
	var errs []error
	for item := range strings.SplitSeq(list, ",") {
		errs = append(errs, read(strings.TrimSpace(item)))
	}
	return errors.Join(errs...)
}

// readSettings reads options, and variables where an option is not given. All
// mistakes are told at once.
func readSettings(args, environ []string) (settings, error) {
	s := defaults()
	given, errs := map[string]string{}, []error(nil)
	unknown := func(written, before, name string) {
		var names []string
		for _, o := range options {
			names = append(names, o.name)
		}
		hint := ""
		// Of a variable the name after the prefix is compared: all have the prefix.
		if near := spelling.Nearest(strings.ToLower(strings.ReplaceAll(name, "_", "-")), names); near != "" {
			if before == settingPrefix {
				near = strings.ToUpper(strings.ReplaceAll(near, "-", "_"))
			}
			hint = "; did you mean " + before + near + "?"
		}
		errs = append(errs, fmt.Errorf("%s: there is no such setting%s", written, hint))
	}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		rest, ours := strings.CutPrefix(name, settingPrefix)
		switch {
		case !ours:
		case !slices.ContainsFunc(options, func(o setting) bool { return o.variable() == name }):
			unknown(name, settingPrefix, rest)
		case value != "":
			given[name] = value
		}
	}
	for i := 0; i < len(args); i++ {
		written, value, has := strings.Cut(args[i], "=")
		name, dashed := strings.CutPrefix(written, "--")
		is := dashed && isOption(name)
		if !has && i+1 < len(args) && (is || strings.HasPrefix(written, "-") && !strings.HasPrefix(args[i+1], "-")) {
			i++
			has, value = true, args[i]
		}
		switch _, twice := given[name]; {
		case !is:
			unknown(written, "--", strings.TrimLeft(name, "-"))
		case !has:
			errs = append(errs, fmt.Errorf("%s: it has no value", written))
		case twice:
			errs = append(errs, fmt.Errorf("%s: it is given twice", written))
		default:
			given[name] = value
		}
	}
	for _, o := range options {
		for _, name := range []string{o.variable(), o.name} { // an option outranks the variable
			value, is := given[name]
			if !is {
				continue
			}
			if err := o.read(&s, value); err != nil {
				written := name
				if name == o.name {
					written = "--" + name
				}
				for line := range strings.SplitSeq(err.Error(), "\n") {
					if _, formed := err.(beyond); !formed {
						line += "; write it like " + strings.Trim(o.form, "`")
					}
					errs = append(errs, fmt.Errorf("%s: %s", written, line))
				}
			}
		}
	}
	if s.Resolvers == nil {
		s.Resolvers = systemResolvers()
		if s.Resolvers == nil {
			errs = append(errs, fmt.Errorf("--resolvers: %s names no IPv4 name server, and none is set; write it like 192.0.2.53", resolvConf))
		}
	}
	for i := range errs { // each is a message of its own
		if i > 0 {
			errs[i] = fmt.Errorf("corral-fetch: %w", errs[i])
		}
	}
	if len(errs) > 0 {
		return settings{}, exit.Invalidf("corral-fetch settings lists what can be set", "%w", errors.Join(errs...))
	}
	return s, nil
}

// systemResolvers are the name servers that this machine or container asks.
func systemResolvers() (all []netip.AddrPort) {
	b, err := os.ReadFile(resolvConf)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(words[1]); err == nil && a.Is4() {
			all = append(all, netip.AddrPortFrom(a, 53))
		}
	}
	return all
}

// roots are the certificates to trust; nil is the system's.
func (s settings) roots() (*x509.CertPool, error) {
	if s.CAFile == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(s.CAFile)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", s.CAFile)
	}
	return pool, nil
}

// settingsText lists what can be set.
func settingsText() string {
	var b strings.Builder
	for _, o := range options {
		plain := strings.NewReplacer("`", "")
		fmt.Fprintf(&b, "--%s, %s\n    %s\n    like %s; default: %s\n", o.name, o.variable(), o.meaning, plain.Replace(o.form), plain.Replace(cmp.Or(o.fallback, "none")))
	}
	return b.String()
}
