package spelling

import "testing"

func TestNearest(t *testing.T) {
	words := []string{"rw", "ro", "egress", "host_services", "env_file", "profile"}
	for _, c := range []struct{ given, want string }{
		{"egres", "egress"}, {"egerss", "egress"}, {"Egress", "egress"}, {"envfile", "env_file"}, {"env-file", "env_file"},
		{"host_service", "host_services"}, {"hostservices", "host_services"}, {"R0", "ro"}, {"RW", "rw"},
		{"rx", ""}, {"r", ""}, {"", ""}, {"publish", ""}, {"x", ""},
	} {
		if got := Nearest(c.given, words); got != c.want {
			t.Errorf("Nearest(%q) = %q, want %q", c.given, got, c.want)
		}
	}
}
