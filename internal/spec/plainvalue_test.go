package spec

import (
	"strings"
	"testing"
)

// What an env_file holds beside secrets stands in many places: DB_HOST=localhost is in
// every /etc/hosts. What could be a secret is looked for.
func TestTooPlain(t *testing.T) {
	for value, want := range map[string]string{
		"": "short", "1234567": "short", "12345678": "a plain word", "localhost": "a plain word", "json-file": "a plain word",
		"infinity": "a plain word", "production": "a plain word", "192.168.1.20": "a plain word", "127.0.0.1:8080": "a plain word",
		"192.168.100.100:5432": "an address", "2001:db8:0:1::/64": "an address", "fd00:1:2:3:4:5:6:7": "an address",
		"db.internal.example": "the name of a host", "db.internal.example:5432": "the name of a host", "https://api.vendor.test": "the name of a host",
		"http://localhost:11434/": "the name of a host", "localhost:5432": "the name of a host", "corral-host:8080": "the name of a host",
		"/etc/ssl/certs/ca.crt": "a path", "/usr/local/bin:/usr/bin:/bin": "a path",
		"Europe/Berlin": "a time zone", "America/Argentina/Buenos_Aires": "a time zone", "en_US.UTF-8": "a locale",
		"gpt-4.1-mini": "a name with a version", "some-model-4-5-20250514": "a name with a version", "node:20-alpine": "a name with a version",

		"Passw0rd!": "", "hunter2-A": "", "s3cr\xffet-value": "", "Aa345678": "", strings.Repeat("a", 16): "", "0123456789abcdef": "",
		"correct-horse-battery-staple": "", "sk-proj-0123456789abcdef": "", "postgres://u:p4ss@db.test/x": "", "https://hooks.test/T0/B0/x": "",
		"https://0123456789abcdef0123": "", "/9j/4AAQSkZJRgABAQ": "", "/wJalrXUtnFEMI/K7MDENG": "", "0123456789abcdef.0123456789abcde1": "",
		"7c9e6679-7425-40de-944b-e07fc1f90ae7": "", "/etcetera/0123456789": "",
	} {
		if got := TooPlain(value); got != want {
			t.Errorf("%q is %q, want %q", value, got, want)
		}
	}
}
