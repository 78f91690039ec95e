package wayback

import (
	"context"
	"slices"

	"golang.org/x/sys/unix"
)

// Repositories are the directories at or below root that hold a .git, most of
// them at most, sorted. They are whole if there are no others: neither were
// there more, nor was anything not looked at.
func Repositories(ctx context.Context, root string, most int) (dirs []string, whole bool) {
	d, err := openRoot(root)
	if err != nil {
		return nil, false
	}
	defer d.close()
	c := census{budget: budget{ctx: ctx, left: entriesMost}, most: most, whole: ctx.Err() == nil}
	if c.whole {
		c.walk(d, 0)
	}
	slices.Sort(c.found)
	return c.found, c.whole
}

type census struct {
	budget
	most  int
	found []string
	whole bool
}

// walk says whether to go on.
func (c *census) walk(d *directory, depth int) bool {
	var dirs []string
	git := false
	err := d.each(func(name string, kind byte) error {
		if err := c.spend(); err != nil {
			return err
		}
		if name == ".git" {
			git = true
		} else if kind == unix.DT_DIR {
			dirs = append(dirs, name)
		}
		return nil
	})
	if git && len(c.found) >= c.most {
		c.whole = false
		return false
	}
	if git {
		c.found = append(c.found, d.path)
	}
	if err != nil {
		c.whole = false
		if c.left < 0 || c.ctx.Err() != nil {
			return false
		}
	}
	slices.Sort(dirs)
	for _, name := range dirs {
		sub, err := d.open(name)
		if err != nil || depth >= depthMost {
			if err == nil {
				sub.close()
			}
			c.whole = c.whole && missing(err)
			continue
		}
		on := c.walk(sub, depth+1)
		sub.close()
		if !on {
			return false
		}
	}
	return true
}
