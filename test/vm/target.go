// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// target is a kernel that tests run on.
type target struct {
	name    string // as on the command line: "6.1", "6.1-arm64"
	arch    string // Go's name: "amd64"
	suite   string // of Debian
	pattern string // of the package's name; the newest that matches is taken
}

// kernels are those that the matrix knows, oldest first.
var kernels = [...]target{
	{"5.10", "amd64", "bullseye", `linux-image-cloud-amd64`},
	{"6.1", "amd64", "bookworm-security", `linux-image-cloud-amd64`},
	{"6.12", "amd64", "bookworm-security", `linux-image-6\.12-cloud-amd64`},
	{"6.18", "amd64", "trixie-backports", `linux-image-6\.18\..*-cloud-amd64`},
	{"newest", "amd64", "trixie-backports", `linux-image-cloud-amd64`},
	{"6.1-arm64", "arm64", "bookworm", `linux-image-cloud-arm64`},
}

// find returns the kernels with these names; none: all of amd64.
func find(names []string) ([]target, error) {
	var out []target
	var known []string
	for _, k := range kernels {
		known = append(known, k.name)
		if len(names) == 0 && k.arch == "amd64" {
			out = append(out, k)
		}
	}
next:
	for _, name := range names {
		for _, k := range kernels {
			if k.name == name {
				out = append(out, k)
				continue next
			}
		}
		return nil, fmt.Errorf("no kernel %q, there are: %s", name, strings.Join(known, ", "))
	}
	return out, nil
}

// installed is an unpacked kernel.
type installed struct {
	target
	dir     string
	release string // as uname -r says
	image   string // the file to boot
}

// open finds an unpacked kernel in the cache folder.
func (k target) open(cache string) (*installed, error) {
	in := &installed{target: k, dir: filepath.Join(cache, k.name)}
	if _, err := os.Stat(in.ready()); err != nil {
		return nil, fmt.Errorf("kernel %s is not in %s [run: make vm-fetch KERNEL=%s]", k.name, cache, k.name)
	}
	releases, err := os.ReadDir(filepath.Join(in.dir, "lib/modules"))
	if err != nil {
		return nil, fmt.Errorf("read kernel %s: %w", k.name, err)
	}
	if len(releases) != 1 {
		return nil, fmt.Errorf("kernel %s has %d releases in %s [remove that folder and fetch again]", k.name, len(releases), in.dir)
	}
	in.release = releases[0].Name()
	for _, at := range []string{"boot/vmlinuz-" + in.release, "lib/modules/" + in.release + "/vmlinuz"} {
		if in.image = filepath.Join(in.dir, at); isFile(in.image) {
			return in, nil
		}
	}
	return nil, fmt.Errorf("kernel %s has no vmlinuz in %s", k.name, in.dir)
}

// ready is the file that says that a kernel is unpacked completely.
func (in *installed) ready() string { return filepath.Join(in.dir, "ready") }

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}
