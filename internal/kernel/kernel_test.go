// SPDX-License-Identifier: Apache-2.0

package kernel

import "testing"

func TestParseRelease(t *testing.T) {
	for text, want := range map[string]Release{
		"5.10.0-32-cloud-amd64":     {5, 10},
		"6.12.117+deb12-cloud-arm6": {6, 12},
		"7.3.4":                     {7, 3},
		"6.18-rc1":                  {6, 18},
	} {
		if got, err := ParseRelease(text); err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "linux", "6"} {
		if got, err := ParseRelease(text); err == nil {
			t.Errorf("%q: %v, want an error", text, got)
		}
	}
}

func TestBefore(t *testing.T) {
	for _, tc := range []struct {
		a, b Release
		want bool
	}{
		{Release{5, 9}, Release{5, 10}, true},
		{Release{5, 10}, Release{5, 10}, false},
		{Release{6, 1}, Release{5, 15}, false},
		{Release{5, 15}, Release{6, 1}, true},
		{Release{7, 0}, Release{6, 18}, false},
	} {
		if got := tc.a.Before(tc.b); got != tc.want {
			t.Errorf("%s before %s: %t", tc.a, tc.b, got)
		}
	}
}

// No feature is older than the agent's floor: the kernels before it
// are refused. Names are unique.
func TestFeatures(t *testing.T) {
	seen := make(map[string]bool)
	for _, f := range Features() {
		if seen[f.String()] || f.String() == "" || f.Without() == "" {
			t.Errorf("feature %d: name %q, without %q", f, f, f.Without())
		}
		seen[f.String()] = true
		if f.Since().Before(Floor()) || f.Expected(Floor()) != (f.Since() == Floor()) || !f.Expected(f.Since()) {
			t.Errorf("%s: since %s", f, f.Since())
		}
	}
}

func TestRunning(t *testing.T) {
	r, name, err := Running()
	if err != nil || r.Major < 3 || name == "" {
		t.Errorf("%v, %q, %v", r, name, err)
	}
}
