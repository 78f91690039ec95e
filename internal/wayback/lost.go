package wayback

import (
	"strings"

	"golang.org/x/sys/unix"
)

// shieldLost is why a shield that is gone matters: the kernel takes a bind away
// inside as soon as something is renamed over it on the host, as git config
// does there.
const shieldLost = "its shield is gone, and the agent could write it"

// Lost says which shields of a sandbox that is up hold no more: what is at their
// path now is not what was bound. A shield that was lost and whose path has the
// same inode again is not seen; a Watcher sees that.
func Lost(shields []Bind) []Finding {
	var out []Finding
	if len(shields) == 0 {
		return nil
	}
	d, err := openRoot("/")
	if err != nil {
		return []Finding{unseen("/", err)}
	}
	defer d.close()
	for _, b := range shields {
		if f, lost := b.lost(d, strings.TrimPrefix(b.Path, "/")); lost {
			out = append(out, f)
		}
	}
	return ordered(out)
}

// lost says what became of a bind, which is at name in d.
func (b Bind) lost(d *directory, name string) (Finding, bool) {
	st, err := d.stat(name)
	switch {
	case missing(err) || err == unix.ENOTDIR:
		return b.finding("was removed on this machine while the sandbox ran"), true
	case err != nil:
		return unseen(b.Path, err), true
	case st.Dev != b.Dev || st.Ino != b.Ino:
	case b.Born == 0:
		return Finding{}, false
	default:
		if now := d.born(name); now == 0 || now == b.Born {
			return Finding{}, false
		}
	}
	f := b.finding("was replaced on this machine while the sandbox ran")
	if kind := kindOf(st); kind == symlink {
		f.What += ", " + kind
		f.Target, _ = d.link(name)
	}
	return f, true
}

func (b Bind) finding(what string) Finding {
	return Finding{Path: b.Path, What: what, Reason: shieldLost, First: true, rank: rankFirst, row: rowShield, apart: true}
}

// unseen is what could not be looked at while the sandbox ran.
func unseen(where string, err error) Finding {
	return Finding{Path: where, What: "could not be looked at while the sandbox ran", Reason: unlookable(cause(err)), First: true, rank: rankFirst, row: rowUnseen}
}
