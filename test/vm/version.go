// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// changed ends the version of a tree that is not as it was committed.
const changed = "-dirty"

// versionOf names the commit of a working tree as `git describe --always` does, and says
// whether anything in it is changed or new.
func versionOf(ctx context.Context, dir string) (string, error) {
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = dir
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("ask git in %s for the version: %w", dir, err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	version, err := git("describe", "--always", "--tags")
	if err != nil {
		return "", err
	}
	status, err := git("status", "--porcelain")
	if status != "" {
		version += changed
	}
	return version, err
}

// describe is the version of what is tested. Where git does not know, tests run all the
// same.
func (m *matrix) describe(ctx context.Context) string {
	version, err := versionOf(ctx, m.top)
	if err != nil {
		fmt.Fprintf(m.out, "vm: %v: this makes no table\n", err)
	}
	return version
}

// watchTree is for after the machines ran, which get the tree as they boot: what changed
// meanwhile is no version.
func (m *matrix) watchTree(ctx context.Context) {
	if m.version != "" && m.describe(ctx) != m.version {
		fmt.Fprintln(m.out, "vm: the tree changed while tests ran: this makes no table")
		m.version = strings.TrimSuffix(m.version, changed) + changed
	}
}

// sameVersion returns the version that all results are of; an error where there is none,
// or one that nobody could check out.
func sameVersion(rs []*result) (string, error) {
	for _, r := range rs {
		switch version := rs[0].Version; {
		case r.Version == "":
			return "", fmt.Errorf("the result of kernel %s says not of which version it is [run: %s, in a clone of the repository]", r.Kernel, r.again())
		case strings.HasSuffix(r.Version, changed):
			return "", fmt.Errorf("the result of kernel %s is of a changed tree, %s [commit, and run: %s]", r.Kernel, r.Version, r.again())
		case r.Version != version:
			return "", fmt.Errorf("the result of kernel %s is of version %s, that of kernel %s of %s [run, without a change between: make vm]",
				rs[0].Kernel, version, r.Kernel, r.Version)
		}
	}
	return rs[0].Version, nil
}

// again is the command that finds a result anew. Those of amd64 stand in one table, and
// are found together.
func (r *result) again() string {
	if r.foreign() {
		return "make vm KERNEL=" + r.Kernel
	}
	return "make vm"
}

// foreign says whether the kernel is of an architecture that has no column.
func (r *result) foreign() bool { return strings.Contains(r.Kernel, "-") }
