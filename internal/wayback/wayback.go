// Package wayback is about what a sandbox could make the host execute. Shield
// says what of a repository is bound so that it cannot be written or renamed
// away inside; Take and Compare, from the one table that Table shows, report
// what the host would later execute and what changed in it; Watch remembers
// what cannot be shielded and was there only for a moment, and it and Lost which
// shields hold no more; Lines are what of it to print.
//
// In go directories, out come binds and findings. Everything below them is
// hostile: it is opened beneath a handle, no symbolic link is followed there, only
// regular files are read and 1 MiB of each at most, and what was not looked at
// is said. The package runs no program, git least of all, and writes nothing
// but the missing files and directories of a shield, empty.
package wayback
