package secret

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/corral-sandbox/corral/internal/exit"
)

// revealed is what a list of variables holds, a line each.
func revealed(vars []Var) string {
	var b strings.Builder
	for _, v := range vars {
		fmt.Fprintf(&b, "%s=%q\n", v.Name, v.Value.Reveal())
	}
	return b.String()
}

// R115: what arrives is byte for byte what was written.
func TestValues(t *testing.T) {
	for line, want := range map[string]string{
		`A="abc$def"`:        `abc$def`,
		`A=abc$def`:          `abc$def`,
		`A=${HOME}$(id)`:     `${HOME}$(id)`,
		`A=$$`:               `$$`,
		`A=a#b`:              `a#b`,
		`A='x y'`:            `x y`,
		`A="x y"`:            `x y`,
		`A=x y`:              `x y`,
		`A=a=b==`:            `a=b==`,
		`A==`:                `=`,
		`A=`:                 ``,
		`A=''`:               ``,
		`A=""`:               ``,
		`export A=1`:         `1`,
		`A=it's "so"`:        `it's "so"`,
		`A=a"`:               `a"`,
		`A="it's"`:           `it's`,
		`A='say "so"'`:       `say "so"`,
		`A='a # b'`:          `a # b`,
		`A="a # b"`:          `a # b`,
		`A='#'`:              `#`,
		`A=' a '`:            ` a `,
		"A='a\tb'":           "a\tb",
		"A=\"\t\"":           "\t",
		`A='\'`:              `\`,
		`A='multi\nline'`:    `multi\nline`,
		`A='a\'`:             `a\`,
		`A=a\nb`:             `a\nb`,
		`A=\\server\x`:       `\\server\x`,
		`A=$2y$10$abc/def.G`: `$2y$10$abc/def.G`,
		`A=naïve 日本 🔑`:       `naïve 日本 🔑`,
		"A=a\u00a0b":         "a\u00a0b",
		"A='\u00a0'":         "\u00a0",
		"A=`id`":             "`id`",
		`A=!"§%&/()=?*~;|<>`: `!"§%&/()=?*~;|<>`,
		`A={"k": "v"}`:       `{"k": "v"}`,
		`A="{'k': 'v'}"`:     `{'k': 'v'}`,
		`A=export B=1`:       `export B=1`,
	} {
		for ending, src := range map[string]string{"LF": line + "\n", "CRLF": line + "\r\n", "none": line, "after a mark": "\ufeff" + line} {
			vars, err := Parse("f", []byte(src))
			if err != nil {
				t.Errorf("%s (%s): %v", line, ending, err)
			} else if len(vars) != 1 || vars[0].Name != "A" || vars[0].Value.Reveal() != want {
				t.Errorf("%s (%s) is %s, want %q", line, ending, revealed(vars), want)
			}
		}
	}
}

func TestFile(t *testing.T) {
	const src = "\ufeff# keys\r\n\n \t\nB=2\n  # more = 'of\tthem\n\t#x\nexport A='1'\r\n_x9=\nexport=3"
	const want = "B=\"2\"\nA=\"1\"\n_x9=\"\"\nexport=\"3\"\n"
	vars, err := Parse("f", []byte(src))
	if got := revealed(vars); err != nil || got != want {
		t.Errorf("got %v\n%s\nwant\n%s", err, got, want)
	}
	for _, empty := range []string{"", "\n", "\ufeff", "# none", "\r\n"} {
		if vars, err := Parse("f", []byte(empty)); err != nil || len(vars) != 0 {
			t.Errorf("%q: %v, %s", empty, err, revealed(vars))
		}
	}
}

// Lines that readers of such files disagree about, and what is no variable.
func TestMistakes(t *testing.T) {
	for line, want := range map[string]fault{
		`A="multi\nline"`:      escape,
		`A="a\\b"`:             escape,
		`A="a\"b"`:             escape,
		`A="a\`:                escape,
		`A=a #b`:               hash,
		`A=a # b`:              hash,
		"A=a\u00a0#b":          hash,
		`A=#b`:                 hash,
		`A=#`:                  hash,
		`A= a`:                 spaced,
		`A =a`:                 spaced,
		`A = a`:                spaced,
		"A\t=a":                spaced,
		`A= `:                  spaced,
		`A= 'a'`:               spaced,
		"A=\u00a0a":            spaced,
		"A=\ufeffa":            spaced,
		`A=a `:                 trailing,
		"A=a\t":                trailing,
		"A=a\u2003":            trailing,
		"A=a\u3000":            trailing,
		"A=a\tb":               control,
		`A=a\`:                 joins,
		`A='a`:                 open,
		`A="a`:                 open,
		`A='`:                  open,
		`A="a'`:                open,
		`A='a' `:               after,
		`A="a" # b`:            after,
		`A="a"b`:               after,
		`A='a'"b"`:             after,
		`A="a"b"`:              inside,
		`A='it''s'`:            inside,
		`A='''`:                inside,
		`A`:                    noEquals,
		`export A`:             noEquals,
		`line" of a value`:     noEquals,
		`=a`:                   badName,
		`export =a`:            badName,
		`9A=a`:                 badName,
		`A-B=a`:                badName,
		`A B=a`:                badName,
		`A.b=a`:                badName,
		`Ä=a`:                  badName,
		`set A=a`:              badName,
		`{"A": "b=c"}`:         badName,
		`"A"=a`:                badName,
		`A+=a`:                 badName,
		"export\tA=a":          badName,
		` A=a`:                 indented,
		"\tA=a":                indented,
		`export  A=a`:          indented,
		` export A=a`:          indented,
		"\ufeffA=a":            indented, // a second mark
		"A=a\x00b":             control,
		"A='a\x00b'":           control,
		"A='a\x1bb'":           control,
		"A='a\x7fb'":           control,
		"A='a\u0085b'":         control,
		"A='a\u2028b'":         control,
		"A='a\u2029B=b'":       control,
		"A=a\rB=b":             control,
		"A=a\r\r":              control,
		"# a\rB=b":             control,
		"# a\x1b[0m":           control,
		"\v":                   control,
		"A=a\xff":              notUTF8,
		"# a\xff":              notUTF8,
		"A='\xed\xa0\x80'":     notUTF8, // half of a surrogate pair
		"\xff\xfeA\x00=\x00a":  notUTF8,
		"A=" + long(maxVar-1):  tooLong,
		"A='" + long(maxVar-1): open,
		`HOME=/`:               reserved,
		`export USER=a`:        reserved,
		`PATH=/a`:              reserved,
		`CORRAL_SPEC=a`:        reserved,
		`CORRAL_=a`:            reserved,
		`TINI_SUBREAPER=`:      reserved,
		`GODEBUG=http2debug=1`: reserved,
		`LD_PRELOAD='a`:        reserved,
		"LD_LIBRARY_PATH=a\tb": reserved,
	} {
		vars, err := Parse("f", []byte("\ufeffX=1\n"+line+"\nY=2\n"))
		var e *exit.Error
		if !errors.As(err, &e) || e.Status != exit.Invalid || vars != nil {
			t.Errorf("%.40q: %v, %s", line, err, revealed(vars))
			continue
		}
		if said := e.Error(); !strings.HasPrefix(said, "secrets file f: line 2: "+want.what) || e.Hint != want.hint {
			t.Errorf("%.40q: %q (%s), want %q", line, said, e.Hint, want.what)
		}
	}
	if _, err := Parse("f", []byte("A=a\r")); err == nil || !strings.Contains(err.Error(), control.what) {
		t.Errorf("half an end of line: %v", err)
	}
	for _, near := range []string{"HOMES=", "HOM=", "home=", "XHOME=", "CORRAL=", "MY_CORRAL_X=", "LD=", "PATHS=", "TINI=", "GODEBUGS=", "A=" + long(maxVar-2), "A='" + long(maxVar-2) + "'"} {
		if _, err := Parse("f", []byte(near)); err != nil {
			t.Errorf("%.40q: %v", near, err)
		}
	}
}

// A limit of memory that is taken is one that Go starts with: its runtime gives up on
// any other, in the programs that hand over and check too.
func TestMemoryLimit(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for value, taken := range map[string]bool{
		"4GB": false, "4G": false, "4gib": false, "GiB": false, "4 GiB": false, "4.5GiB": false, "-1": false, "OFF": false, "0x10": false,
		"4PiB": false, "9223372036854775808": false, "8388608TiB": false, "8589934592GiB": false, "1e9": false, "B": false,
		"": true, "off": true, "4GiB": true, "512MiB": true, "524288KiB": true, "536870912B": true, "536870912": true, "1TiB": true,
		"9223372036854775807": true, "8388607TiB": true, "8589934591GiB": true, "0004GiB": true,
	} {
		_, err := Parse("f", []byte("A=1\nGOMEMLIMIT='"+value+"'\n"))
		if (err == nil) != taken {
			t.Errorf("%q: %v", value, err)
		}
		var e *exit.Error
		if !taken && (!errors.As(err, &e) || e.Status != exit.Invalid || e.Error() != "secrets file f: line 2: "+noLimit.what || e.Hint != noLimit.hint) {
			t.Errorf("%q: %v", value, err)
		}
		c := exec.Command(self, "-test.run=^$")
		c.Env = []string{"GOMEMLIMIT=" + value}
		if out, err := c.CombinedOutput(); (err == nil) != taken {
			t.Errorf("Go with %q: %v: %.100s", value, err, out)
		}
	}
	if _, err := Parse("f", []byte("GOMEMLIMITS=4GB\nMY_GOMEMLIMIT=4GB\ngomemlimit=4GB\n")); err != nil {
		t.Error(err)
	}
}

func long(n int) string { return strings.Repeat("x", n) }

func TestEveryReasonIsGiven(t *testing.T) {
	for _, o := range others {
		name := strings.Replace(o.name, "*", "ANY", 1)
		_, err := Parse("f", []byte(name+"="))
		if o.reason == "" || err == nil || !strings.HasSuffix(err.Error(), o.name+": "+o.reason) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	const src = "A=1\nB\n# \nA=2\nC = 3\nA='3\nD=\"a\\b\"\nC=4\nD=5\n"
	const want = `secrets file /x/a b.env:
  line 2: no =
  line 4: the same name as in line 1
  line 5: a blank beside the =
  line 6: a quote that does not end on its line
  line 7: a backslash in double quotes, which some readers take for an escape
  line 9: the same name as in line 7`
	_, err := Parse("/x/a b.env", []byte(src))
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	var e *exit.Error
	if errors.As(err, &e) && strings.Count(e.Hint, repeated.hint) != 1 {
		t.Errorf("a hint is repeated: %s", e.Hint)
	}
	for n, want := range map[int]bool{maxPrinted: false, maxPrinted + 1: true} {
		_, err := Parse("f", []byte(strings.Repeat("x\n", n)))
		if got := strings.HasSuffix(err.Error(), "\n  and 1 more"); got != want {
			t.Errorf("%d mistakes: %v", n, err)
		}
	}
}

func TestSize(t *testing.T) {
	comments := strings.Repeat("# "+long(1021)+"\n", maxBytes/1024)
	if _, err := Parse("f", []byte(comments)); err != nil || len(comments) != maxBytes {
		t.Errorf("%d bytes: %v", len(comments), err)
	}
	if _, err := Parse("f", []byte(comments+"\n")); err == nil || !strings.Contains(err.Error(), tooMuch.what) {
		t.Errorf("a byte too many: %v", err)
	}
}

// The file's own name is a person's, and may be anything.
func TestNameOfTheFile(t *testing.T) {
	_, err := Parse("a\x1b[2Jb", []byte("x"))
	if err == nil || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("%q", err)
	}
}

// ours is what an error may consist of: R117.
var ours = func() *regexp.Regexp {
	var said []string
	for _, f := range []fault{notUTF8, control, indented, noEquals, spaced, badName, tooLong, hash, trailing, joins, open, after, inside, escape} {
		said = append(said, regexp.QuoteMeta(f.what))
	}
	said = append(said, regexp.QuoteMeta(repeated.what)+` \d+`)
	for _, o := range others {
		said = append(said, regexp.QuoteMeta(reserved.what+" "+o.name+": "+o.reason))
	}
	line := `line \d+: (` + strings.Join(said, "|") + `)`
	return regexp.MustCompile(`^secrets file f:( ` + line + `|(\n  ` + line + `){2,}(\n  and \d+ more)?| ` + regexp.QuoteMeta(tooMuch.what) + `)$`)
}()

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"A=@\nB='@'\nC=\"@\"\n", "export A=@\r\n", "@", "@=@", "A='@\nB=\"@\\\"\n", "A=@ # @\nA=@\n", " A = @ ", "A=@\x00", "A=\xff@", "# @\r@\n",
		"A='@'@\nA='@'@'\n", "HOME@=@\nHOME=@\nCORRAL_@=@", "\ufeffA=@\\\n", "A=a#b\nD=a=b==\nE=\n", "A=@\t@\nB= @\n", "@@@@@@ @\n@@",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		// Wherever the input has an @, a value may have been.
		src := strings.ReplaceAll(s, "@", canary)
		vars, err := Parse("f", []byte(src))
		if err != nil {
			if vars != nil {
				t.Error("mistakes and variables")
			}
			var e *exit.Error
			if !errors.As(err, &e) || e.Status != exit.Invalid || e.Hint == "" {
				t.Errorf("%#v", err)
			}
			hides(t, "the error", err.Error()+e.Hint)
			if !ours.MatchString(err.Error()) {
				t.Errorf("the error has words that are not ours: %q", err)
			}
			return
		}
		hides(t, "the list", fmt.Sprintf("%v %#v", valuesOf(vars), valuesOf(vars)))
		var b strings.Builder
		for i, v := range vars {
			if strings.Contains(v.Value.Reveal(), "'") {
				return // single quotes cannot hold it
			}
			if slices.ContainsFunc(vars[:i], func(o Var) bool { return o.Name == v.Name }) {
				t.Errorf("a name came twice")
			}
			fmt.Fprintf(&b, "%s='%s'\n", v.Name, v.Value.Reveal())
		}
		again, err := Parse("f", []byte(b.String()))
		if err != nil {
			t.Fatalf("in single quotes: %v", err)
		}
		if got, want := revealed(again), revealed(vars); got != want {
			t.Errorf("in single quotes\n%s\nbefore\n%s", got, want)
		}
	})
}

func valuesOf(vars []Var) []Secret {
	var out []Secret
	for _, v := range vars {
		out = append(out, v.Value)
	}
	return out
}

func TestLoad(t *testing.T) {
	me := uint32(os.Getuid())
	dir := t.TempDir()
	write := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("A='"+canary+"'\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, mode := range []os.FileMode{0o600, 0o400, 0o644, 0o640} {
		vars, err := Load(write(fmt.Sprintf("%o", mode), mode), me+1, me)
		if err != nil || revealed(vars) != fmt.Sprintf("A=%q\n", canary) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}

	link := filepath.Join(dir, "link")
	fifo := filepath.Join(dir, "fifo")
	socket := filepath.Join(dir, "socket")
	big := write("big", 0o600)
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := errors.Join(
		os.Symlink(write("target", 0o600), link),
		syscall.Mkfifo(fifo, 0o600),
		syscall.Bind(fd, &syscall.SockaddrUnix{Name: socket}),
		os.Truncate(big, maxBytes+1),
	); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("A=1\n"+canary), 0o600); err != nil {
		t.Fatal(err)
	}
	good := write("good", 0o600)
	for _, tt := range []struct {
		name, path, said, hint string
		owners                 []uint32
	}{
		{"missing", filepath.Join(dir, "none"), "there is no such file", "chmod 600", []uint32{me}},
		{"link", link, "a symbolic link", "file itself", []uint32{me}},
		{"FIFO", fifo, "not a regular file", "file", []uint32{me}},
		{"socket", socket, "not a regular file", "file", []uint32{me}},
		{"directory", dir, "not a regular file", "file", []uint32{me}},
		{"device", "/dev/null", "not a regular file", "file", []uint32{me, 0}},
		{"others write", write("o", 0o602), "writable by others (mode 0602)", "chmod 600 \"" + dir, []uint32{me}},
		{"somebody else's", good, fmt.Sprintf("belongs to uid %d", me), "your own", []uint32{me + 1}},
		{"nobody's", good, fmt.Sprintf("belongs to uid %d", me), "your own", nil},
		{"too big", big, tooMuch.what, "keys", []uint32{me}},
		{"mistake", broken, "line 2: no =", "NAME=VALUE", []uint32{me}},
		{"NUL in the path", "a\x00b", "invalid argument", "", []uint32{me}},
	} {
		vars, err := Load(tt.path, tt.owners...)
		var e *exit.Error
		if !errors.As(err, &e) || e.Status != exit.Invalid || vars != nil {
			t.Errorf("%s: %v, %d variables", tt.name, err, len(vars))
			continue
		}
		if !strings.HasPrefix(e.Error(), "secrets file ") || !strings.Contains(e.Error(), tt.said) || !strings.Contains(e.Hint, tt.hint) {
			t.Errorf("%s: %q, hint %q, want %q, hint %q", tt.name, e.Error(), e.Hint, tt.said, tt.hint)
		}
		hides(t, tt.name, e.Error()+e.Hint)
	}
}

// A group of the owner's own number may write, another one may not.
func TestWritable(t *testing.T) {
	for _, tt := range []struct {
		mode     uint32
		uid, gid uint32
		want     bool
	}{
		{0o600, 1000, 1000, false},
		{0o644, 1000, 100, false},
		{0o660, 1000, 1000, false},
		{0o620, 1000, 1001, true},
		{0o602, 1000, 1000, true},
		{0o622, 1000, 1000, true},
		{0o666, 0, 0, true},
	} {
		if got := writable(&syscall.Stat_t{Mode: tt.mode, Uid: tt.uid, Gid: tt.gid}); got != tt.want {
			t.Errorf("mode %o of %d:%d: %v", tt.mode, tt.uid, tt.gid, got)
		}
	}
}
