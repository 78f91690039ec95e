# From the output of `go test -v`: what each failed test said, its subtests' words included.
function told(name, line) {
	said[name] = said[name] line "\n"
}
/^=== (RUN|CONT|NAME|PAUSE) / { name = $3; next }
/^ *--- FAIL: / {
	of = $3
	if (said[of]) printf "%s\n%s", of, said[of]
	else print of
	delete said[of]
	name = of
	next
}
/^ *--- / { delete said[$3]; name = ""; next }
/^(panic: |fatal error: |SIGQUIT|WARNING: DATA RACE)/ { panicked = 60 }
panicked { print; panicked--; next }
/^FAIL\t|^make: / { print; next }
/^(ok|PASS|FAIL|\?)/ { delete said; name = ""; next }
name { told(name, $0) }
