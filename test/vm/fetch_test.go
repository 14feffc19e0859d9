// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestNewest(t *testing.T) {
	names := []string{
		"linux-image-6.18.9+deb13-cloud-amd64", "linux-image-6.18.15+deb13-cloud-amd64", "linux-image-6.18.15+deb13-cloud-amd64-unsigned",
		"linux-image-7.3.4+deb13-cloud-amd64", "linux-image-cloud-amd64",
	}
	for _, tc := range []struct{ pattern, want string }{
		{`linux-image-6\.18\..*-cloud-amd64`, "linux-image-6.18.15+deb13-cloud-amd64"},
		{`linux-image-cloud-amd64`, "linux-image-cloud-amd64"},
		{`linux-image-[0-9].*-cloud-amd64`, "linux-image-7.3.4+deb13-cloud-amd64"},
	} {
		got, err := newest(append([]string(nil), names...), tc.pattern)
		if err != nil || got != tc.want {
			t.Errorf("%s: %q, %v, want %q", tc.pattern, got, err, tc.want)
		}
	}
	if got, err := newest(names, `linux-image-4\..*`); err == nil {
		t.Errorf("got %q, want an error", got)
	}
}

func TestFind(t *testing.T) {
	all, err := find(nil)
	if err != nil || len(all) != 5 || all[0].name != "5.10" || all[4].name != "newest" {
		t.Errorf("%v, %v", all, err)
	}
	if _, err := find([]string{"6.1", "2.6"}); err == nil {
		t.Error("kernel 2.6 was found")
	}
}

// A kernel that was not fetched is told with what to do.
func TestOpenMissing(t *testing.T) {
	ks, err := find([]string{"6.1"})
	if err != nil {
		t.Fatal(err)
	}
	if in, err := ks[0].open(t.TempDir()); err == nil {
		t.Errorf("got %+v", in)
	}
}
