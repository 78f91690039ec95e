package netfilter

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Parse reads the output of `iptables -S`, of either backend.
func Parse(f Family, dashS string) (Ruleset, error) {
	r, _, err := parse(f, dashS)
	return r, err
}

// Counter is how often a rule matched.
type Counter struct {
	Family  Family
	Chain   string
	ID      string
	Proto   string // that the rule is about, as tcp; empty if it names none
	Packets uint64
	Bytes   uint64
}

// parse also takes the counters that -v adds, in the order of the rules.
func parse(f Family, dashS string) (Ruleset, []Counter, error) {
	r := Ruleset{Family: f}
	counters, err := r.read(dashS)
	if err != nil {
		return Ruleset{}, nil, err
	}
	for _, name := range builtin {
		if !slices.ContainsFunc(r.Chains, func(c Chain) bool { return c.Name == name && c.Policy != "" }) {
			return Ruleset{}, nil, fmt.Errorf("%s: no policy for chain %s", f, name)
		}
	}
	return r.withBuiltins(), counters, nil
}

// read adds the chains and rules of any table to r.
func (r *Ruleset) read(dashS string) ([]Counter, error) {
	f := r.Family
	var counters []Counter
	for line := range strings.Lines(dashS) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words, err := split(line)
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %s", f, err, line)
		}
		i := -1
		if len(words) > 1 {
			i = slices.IndexFunc(r.Chains, func(c Chain) bool { return c.Name == words[1] })
		}
		switch {
		case words[0] == "-P" && len(words) >= 3 && i < 0:
			r.Chains = append(r.Chains, Chain{Name: words[1], Policy: words[2]})
		case words[0] == "-N" && len(words) >= 2 && i < 0:
			r.Chains = append(r.Chains, Chain{Name: words[1]})
		case words[0] == "-A" && i >= 0:
			rule, n, err := parseRule(words[2:])
			if err != nil {
				return nil, fmt.Errorf("%s: %w: %s", f, err, line)
			}
			r.Chains[i].Rules = append(r.Chains[i].Rules, rule)
			n.Family, n.Chain, n.ID = f, words[1], rule.ID
			if of, is := strings.CutPrefix(rule.Match, "-p "); is {
				n.Proto, _, _ = strings.Cut(of, " ")
			}
			counters = append(counters, n)
		default:
			return nil, fmt.Errorf("%s: not understood: %s", f, line)
		}
	}
	return counters, nil
}

// parseRule takes the first comment and the counters out of the match. Whatever
// else is unusual stays in the match, where a comparison finds it.
func parseRule(words []string) (Rule, Counter, error) {
	var rule Rule
	var n Counter
	var match []string
	commented := false
	for i := 0; i < len(words); i++ {
		rest := words[i:]
		switch {
		case rest[0] == "-j":
			if len(rest) < 2 {
				return Rule{}, Counter{}, fmt.Errorf("-j without a target")
			}
			rule.Target, rule.Match = join(rest[1:]), join(match)
			return rule, n, nil
		case rest[0] == "-c" && len(rest) >= 3:
			var err error
			if n.Packets, err = strconv.ParseUint(rest[1], 10, 64); err != nil {
				return Rule{}, Counter{}, err
			}
			if n.Bytes, err = strconv.ParseUint(rest[2], 10, 64); err != nil {
				return Rule{}, Counter{}, err
			}
			i += 2
		case !commented && len(rest) >= 4 && rest[0] == "-m" && rest[1] == "comment" && rest[2] == "--comment":
			commented = true
			if id, reason, ok := strings.Cut(rest[3], ": "); ok && id != "" && !strings.Contains(id, " ") {
				rule.ID, rule.Reason = id, reason
			} else {
				rule.Reason = rest[3]
			}
			i += 3
		default:
			match = append(match, rest[0])
		}
	}
	rule.Match = join(match)
	return rule, n, nil
}

// split cuts a line into words as iptables-restore does: blanks separate,
// double quotes keep together, a backslash inside them takes the next byte as
// it is.
func split(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord, inQuotes := false, false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case inQuotes && c == '\\' && i+1 < len(line):
			i++
			word.WriteByte(line[i])
		case c == '"':
			inQuotes, inWord = !inQuotes, true
		case c == ' ' && !inQuotes:
			if inWord {
				words = append(words, word.String())
				word.Reset()
			}
			inWord = false
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inQuotes {
		return nil, fmt.Errorf("quote without an end")
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

// join puts words together as iptables prints them: options, addresses, lists
// and ranges bare, free text quoted.
func join(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		text := i > 0 && (words[i-1] == "--nflog-prefix" || words[i-1] == "--comment")
		if text || w == "" || strings.ContainsAny(w, " \"\\'") {
			w = quote(w)
		}
		quoted[i] = w
	}
	return strings.Join(quoted, " ")
}

func canonical(s string) string {
	words, err := split(s)
	if err != nil {
		return s
	}
	return join(words)
}

// quote writes free text as iptables prints it.
func quote(s string) string {
	plain := func(c rune) bool {
		return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '-'
	}
	if s != "" && !strings.ContainsFunc(s, func(c rune) bool { return !plain(c) }) {
		return s
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `'`, `\'`).Replace(s) + `"`
}
