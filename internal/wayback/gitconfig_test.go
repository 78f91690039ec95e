package wayback

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"
)

// odd are configurations as nobody writes them and git reads them.
var odd = map[string]string{
	"empty":                   "",
	"no end of line":          "[a]\nb = c",
	"one line":                "[a] b = c",
	"two headers":             "[a] [b] c = d",
	"values":                  "[a]\nb = c\nb=d\n  b\t=\te  \nB = f\n",
	"case":                    "[CoRe]\nHooksPath = X\n[core \"CaSe\"] Key = v\n",
	"no value":                "[a]\nb\nc =\nd=\"\"\n",
	"no value at the end":     "[a]\nb",
	"a comment for a value":   "[a]\nb = # nothing\nc = x ; y\nd = x;y\ne = \"x;y\" # z\n",
	"comments":                "# one\n; two\n   # three\n[a] # four\n;[b]\nc = d\n",
	"a NUL in a comment":      "# \x00\n[a]\nb = c\n",
	"a key and a comment":     "[a]\nb # c\n",
	"subsection":              "[a \"b\"]\nc = d\n[a   \"B c\"] d = e\n[a \"\"] f = g\n",
	"escapes in a subsection": "[a \"b\\\"c\\\\d\\e\"]\nf = g\n",
	"brackets in subsection":  "[a \"b]c\"]\nd = e\n",
	"dots in subsection":      "[a \"b.c.d\"]\ne = f\n",
	"old section":             "[a.B.c]\nD = e\n",
	"old section, two ways":   "[a.B \"C\"]\nd = e\n",
	"end of line in subsect":  "[a \"b\nc\"]\nd = e\n",
	"escaped end in subsect":  "[a \"b\\\nc\"]\nd = e\n",
	"space before bracket":    "[ a]\nb = c\n",
	"space after section":     "[a ]\nb = c\n",
	"space after subsection":  "[a \"b\" ]\nc = d\n",
	"empty section":           "[]\na = b\n",
	"subsection of nothing":   "[ \"b\"]\nc = d\n",
	"a dot for a section":     "[.]\nc = d\n",
	"a dot first":             "[.a]\nc = d\n",
	"a dot last":              "[a.]\nc = d\n",
	"open section":            "[a\nb = c\n",
	"open section at the end": "[a",
	"dash and digits":         "[a-1]\nb-2 = c\n",
	"a digit first":           "[a]\n1b = c\n",
	"an underscore":           "[a]\nb_c = d\n",
	"an underscore in a head": "[a_b]\nc = d\n",
	"key before any section":  "a = b\n[c]\nd = e\n",
	"junk":                    "[a]\nb = c\n= d\n",
	"junk after a key":        "[a]\nb c\n",
	"quotes":                  "[a]\nb = \"c d\" e \"  f\"\nc = a\"b\"c\nd = \"  \"\n",
	"an open quote":           "[a]\nb = \"c\nd = e\n",
	"escapes":                 "[a]\nb = \\\"\\\\\\n\\t\\bx\nc = \"\\n\"\n",
	"an unknown escape":       "[a]\nb = c\nd = \\x\n",
	"continuation":            "[a]\nb = c \\\n   d\\\ne\nf = g\n",
	"continued quote":         "[a]\nb = \"c \\\n  d\"\n",
	"continued comment":       "[a]\nb = c # d \\\ne = f\n",
	"continued to the end":    "[a]\nb = c\\",
	"spaces inside":           "[a]\nb =   c    d   \n",
	"CRLF":                    "[a]\r\nb = c\r\nd\r\n[e \"f\"]\r\ng = \"h\"\r\n",
	"CR alone":                "[a]\nb = c\rd\n",
	"CR at the end":           "[a]\nb = c\r",
	"continued CRLF":          "[a]\r\nb = c \\\r\n d\r\n",
	"BOM":                     "\xef\xbb\xbf[a]\nb = c\n",
	"half a BOM":              "\xef\xbb[a]\nb = c\n",
	"BOM twice":               "\xef\xbb\xbf\xef\xbb\xbf[a]\nb = c\n",
	"BOM later":               "[a]\n\xef\xbb\xbfb = c\n",
	"form feed":               "\f[a]\nb = c\n",
	"bytes":                   "[a \"\xff\x1b\"]\nb = \xfe\x07\n",
	"includes":                "[include]\npath = /nonexistent/x\n[includeIf \"gitdir:/\"]\npath = y\n",
	"alias":                   "[alias]\n\tst = !touch x; \"echo hi\"\n",
}

// TestConfigAsGitReadsIt compares with git itself.
func TestConfigAsGitReadsIt(t *testing.T) {
	dir := realDir(t)
	bad := 0
	for what, text := range odd {
		write(t, dir, "config", text)
		out, err := exec.Command("git", "config", "--file", dir+"/config", "--list", "-z", "--no-includes").CombinedOutput()
		settings, ours := parseConfig([]byte(text))
		var b strings.Builder
		for _, s := range settings {
			b.WriteString(s.name)
			if !s.bare {
				b.WriteString("\n" + s.value)
			}
			b.WriteByte(0)
		}
		if err != nil {
			bad++
			e, _ := ours.(*unreadable)
			if e == nil || !strings.Contains(string(out), fmt.Sprintf("bad config line %d ", e.line)) && !(what == "open section at the end") { // git counts the end of the file as a line
				t.Errorf("%s: git says %s, we say %v", what, out, ours)
			}
			continue
		}
		if ours != nil || b.String() != string(out) {
			t.Errorf("%s: %v\n git %q\nours %q", what, ours, out, b.String())
		}
	}
	if bad < 10 {
		t.Errorf("git refused only %d", bad)
	}
}

// TestConfigWithNUL: git cuts a name at a NUL, and obeys `[core "pager\0"] x`.
func TestConfigWithNUL(t *testing.T) {
	for _, text := range []string{"[core \"pager\x00\"]\nx = y\n", "[a]\nb = c\x00d\n", "[a\x00]\nb = c\n", "[a]\nb\x00 = c\n", "\x00", "[a]\n\x00b = c\n", "[a]\nb = \\\x00\n", "[a \"\\\x00\"]\n"} {
		if s, err := parseConfig([]byte(text)); err == nil {
			t.Errorf("%q: %v", text, s)
		}
	}
}

func TestConfigBeforeAMistake(t *testing.T) {
	s, err := parseConfig([]byte("[core]\nfsmonitor = x\n!\n[core]\npager = y\n"))
	if len(s) != 1 || s[0].name != "core.fsmonitor" || err == nil || err.Error() != "cannot be read as git config: line 3" {
		t.Errorf("%v, %v", s, err)
	}
}

func FuzzGitConfig(f *testing.F) {
	for _, text := range odd {
		f.Add([]byte(text))
	}
	f.Add([]byte("[core \"pager\x00\"]\nx = y\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		settings, err := parseConfig(b)
		lines := strings.Count(string(b), "\n") + 1
		if e, ok := err.(*unreadable); err != nil && (!ok || e.line < 1 || e.line > lines) {
			t.Fatalf("%v of %d", err, lines)
		}
		if len(settings) > len(b) {
			t.Fatalf("%d settings of %d bytes", len(settings), len(b))
		}
		for _, s := range settings {
			if strings.ContainsRune(s.name+s.value, 0) || s.bare && s.value != "" || s.name == "" {
				t.Fatalf("%+v", s)
			}
			section, _, key, _ := split(s.name)
			if strings.ToLower(section) != section && utf8.ValidString(section) || strings.ToLower(key) != key {
				t.Fatalf("%q is not in lower case", s.name)
			}
			keyRow(s)
		}
		// Written out again in quotes it means the same.
		var again strings.Builder
		for _, s := range settings {
			section, sub, key, hasSub := split(s.name)
			if section == "" || strings.Contains(sub, "\n") {
				return
			}
			quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
			again.WriteString("[" + section)
			if hasSub {
				again.WriteString(` "` + quote.Replace(sub) + `"`)
			}
			again.WriteString("]\n" + key)
			if !s.bare {
				again.WriteString(` = "` + strings.ReplaceAll(quote.Replace(s.value), "\n", `\n`) + `"`)
			}
			again.WriteString("\n")
		}
		if strings.Contains(again.String(), "\r") {
			return
		}
		twice, err := parseConfig([]byte(again.String()))
		if err != nil || len(twice) != len(settings) {
			t.Fatalf("%q: %v, %d settings of %d", again.String(), err, len(twice), len(settings))
		}
		for i := range twice {
			if twice[i] != settings[i] {
				t.Fatalf("%+v is %+v", settings[i], twice[i])
			}
		}
	})
}

func TestKeys(t *testing.T) {
	for text, want := range map[string]string{
		"[core] hookspath = x":                "core.hooksPath",
		"[CORE] HOOKSPATH = x":                "core.hooksPath",
		"[core \"x\"] hookspath = x":          "",
		"[core] hookspathx = x":               "",
		"[core] bare = false":                 "",
		"[core] fsmonitor":                    "core.fsmonitor",
		"[filter \"a.b\"] clean = x":          "filter.a.b.clean",
		"[filter.A] clean = x":                "filter.a.clean",
		"[filter \"A\"] SMUDGE = x":           "filter.A.smudge",
		"[filter \"\"] process = x":           "filter..process",
		"[filter] clean = x":                  "",
		"[filter \"a\"] required = true":      "",
		"[diff] external = x":                 "diff.external",
		"[diff \"x\"] external = x":           "",
		"[diff \"x\"] textconv = x":           "diff.x.textconv",
		"[includeif \"gitdir:/\"] path = x":   "includeIf.gitdir:/.path",
		"[alias] st = status":                 "alias.st",
		"[alias] x = !y":                      "alias.x",
		"[alias \"x\"] command = y":           "alias.x.command",
		"[pager] log = y":                     "pager.log",
		"[submodule \"x\"] update = !y":       "submodule.x.update",
		"[submodule \"x\"] update = rebase":   "",
		"[remote \"x\"] url = ext::sh -c":     "remote.x.url",
		"[remote \"x\"] url = a@b:c":          "remote.x.url",
		"[remote] pushdefault = x":            "",
		"[remote] pushdefault = ../x":         "remote.pushDefault",
		"[branch \"x\"] remote = origin":      "",
		"[branch \"x\"] remote = ext::sh":     "branch.x.remote",
		"[branch \"x\"] pushremote = a@b:c":   "branch.x.pushRemote",
		"[branch \"x\"] merge = refs/heads/x": "",
		"[diff] tool = x":                     "diff.tool",
		"[diff] guitool = x":                  "diff.guitool",
		"[merge] tool = x":                    "merge.tool",
		"[merge] guitool = x":                 "merge.guitool",
		"[remote \"x\"] fetch = +a:b":         "",
		"[http] proxy = x":                    "http.proxy",
		"[http \"https://x.y/\"] proxy = x":   "http.https://x.y/.proxy",
		"[url \"ext::sh\"] insteadof = x":     "url.ext::sh.insteadOf",
		"[gpg \"ssh\"] defaultkeycommand = x": "gpg.ssh.defaultKeyCommand",
		"[gpg \"ssh\"] program = x":           "gpg.ssh.program",
		"[credential \"u\"] helper = x":       "credential.u.helper",
		"[credential] username = x":           "",
		"[user] name = x":                     "",
		"[hook \"x\"] command = y":            "hook.x.command",
		"[sendemail \"x\"] tocmd = y":         "sendemail.x.tocmd",
	} {
		s, err := parseConfig([]byte(text))
		if err != nil || len(s) != 1 {
			t.Fatalf("%s: %v, %v", text, s, err)
		}
		row, got, ok := keyRow(s[0])
		if got != want || ok != (want != "") || ok && row.Reason == "" {
			t.Errorf("%s: %q %v, want %q", text, got, ok, want)
		}
		// The spelling of the report finds its row again.
		if _, again, _ := keyRow(setting{name: got, value: s[0].value}); again != got {
			t.Errorf("%s: %q becomes %q", text, got, again)
		}
	}
}
