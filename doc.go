// Package corral is the root of corral, which runs an agent inside a fence that
// the agent cannot open. It holds no code but the tests of the repository
// itself; the program starts in cmd/corral.
//
// A policy becomes a plan, a plan becomes files, files become containers, the
// gate closes the network, verify proves it:
//
//	corral.yaml ─policy─▶ Policy ─plan─▶ Plan ─render─▶ Tree ─engine─▶ containers ═spec═▶ gate, verify ─▶ report
//
// The tree:
//
//	cmd/        one folder a binary: os.Exit(pkg.Main(…)) and nothing else
//	internal/   the host's packages, the inside's, what both share, and leaves
//	profiles/   what a harness is
//	deploy/     the images of the gate and of other people's stacks
//	docs/       design, threat model, engines
//	test/       setup, the lab, and the tests that need more than one package
//
// Who may import whom, and why, is the table in layers_test.go. HACKING.md
// walks through one run.
package corral
