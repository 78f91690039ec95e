package plan

import (
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

func TestUnlistedPort(t *testing.T) {
	every := spec.Name{}
	for p := 1; p <= 65535; p++ {
		every.Ports = append(every.Ports, uint16(p))
	}
	for name, tt := range map[string]struct {
		ports []uint16
		want  uint16
	}{
		"none":             {nil, 8445},
		"the first":        {[]uint16{8445, 8446}, 8447},
		"from there on":    {every.Ports[8444:], 1},
		"all but one":      {append(append([]uint16{}, every.Ports[:79]...), every.Ports[80:]...), 80},
		"all but the last": {append(append([]uint16{}, every.Ports[:8443]...), every.Ports[8444:]...), 8444},
	} {
		if got := unlistedPort(spec.Gate{Names: []spec.Name{{Ports: tt.ports}}}); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
	if got := unlistedPort(spec.Gate{Names: []spec.Name{every}}); got != 0 {
		t.Errorf("all: %d", got)
	}
}
