package main

import "slices"

// attempts are all of them, each group in one piece.
var attempts = grouped(slices.Concat(dnsAttempts, networkAttempts, flowAttempts, sharedAttempts, localAttempts, fileAttempts,
	mountedAttempts, rightsAttempts, processAttempts, callAttempts))

// grouped keeps the order in which groups appear, and that within each.
func grouped(all []attempt) []attempt {
	var groups []string
	of := map[string][]attempt{}
	for _, a := range all {
		if !slices.Contains(groups, a.group) {
			groups = append(groups, a.group)
		}
		of[a.group] = append(of[a.group], a)
	}
	var out []attempt
	for _, g := range groups {
		out = append(out, of[g]...)
	}
	return out
}
