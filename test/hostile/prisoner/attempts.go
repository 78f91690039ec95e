package main

import "slices"

// attempts are all of them, in the order of their groups.
var attempts = slices.Concat(dnsAttempts, networkAttempts, localAttempts, fileAttempts, rightsAttempts)
