package engine

import (
	"os"
	"strings"

	"github.com/corral-sandbox/corral/internal/spec"
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
// set, if the gate says that it is one which a missing way out makes. The line
// by which it says so is no reason of its own and goes.
func withProxy(failed *GateFailed) *GateFailed {
	told := &GateFailed{Hint: failed.Hint}
	for _, r := range failed.Reasons {
		if r != spec.GateUnanswered {
			told.Reasons = append(told.Reasons, r)
		}
	}
	set := proxies()
	if len(set) == 0 || len(told.Reasons) == len(failed.Reasons) {
		return told
	}
	more := "this machine seems to need a proxy (" + strings.Join(set, ", ") + " is set), and " + hintProxy
	if told.Hint != "" {
		more = told.Hint + "; " + more
	}
	told.Hint = more
	return told
}
