package engine

import (
	"os"
	"slices"
	"strings"
)

const hintProxy = "a proxy that is the only way out is not supported: gates need a direct connection"

// proxies are the variables of this process that name a proxy for what an
// agent does. No sandbox is given them.
func proxies() []string {
	var set []string
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"} {
		if os.Getenv(name) != "" {
			set = append(set, name)
		}
	}
	return set
}

// withProxy adds to a gate's failure what may lie behind it where a proxy is
// set, if it is one that a missing way out makes: names that do not resolve or
// do not answer.
func withProxy(failed *GateFailed) *GateFailed {
	set := proxies()
	silent := slices.ContainsFunc(failed.Reasons, func(r string) bool {
		return strings.Contains(r, "accepts no connection") || strings.Contains(r, "the resolver") || strings.Contains(r, "not resolved within")
	})
	if len(set) == 0 || !silent {
		return failed
	}
	more := "this machine seems to need a proxy (" + strings.Join(set, ", ") + " is set), and " + hintProxy
	if failed.Hint != "" {
		more = failed.Hint + "; " + more
	}
	return &GateFailed{Reasons: failed.Reasons, Hint: more}
}
