package host

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"time"
)

// GitIdentity is the name and e-mail that the person with that home commits
// under, by their global settings alone. Empty where there is none, or no git.
// No repository's configuration is read: git is run at /, asked for the global
// file, and follows no include of it.
func GitIdentity(ctx context.Context, home string) (name, email string) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", "config", "--global", "--no-includes", "--null", "--get-regexp", `^user\.(name|email)$`)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "LC_ALL=C"}
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		cmd.Env = append(cmd.Env, "XDG_CONFIG_HOME="+dir)
	}
	out, err := cmd.Output()
	if err != nil {
		return "", ""
	}
	for entry := range strings.SplitSeq(string(out), "\x00") {
		key, value, _ := strings.Cut(entry, "\n")
		switch key {
		case "user.name":
			name = value
		case "user.email":
			email = value
		}
	}
	return name, email
}
