// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/sockhealth/sockhealth/test/cases/ancestor"
)

// equip gives tests what they would build or find on a machine with compilers and
// containers: guests have neither.
func (m *matrix) equip(ctx context.Context, arch string, b, agent *binary) error {
	dir := filepath.Dir(b.path)
	at := func(name string) string { return filepath.Join(dir, name) }
	foreign := arch != runtime.GOARCH
	switch b.pkg {
	case cases:
		b.beside = []string{agent.path, at("sockhealth-older"), at("golang")}
		if err := ancestor.Build(ctx, m.top, at("sockhealth-older"), "GOARCH="+arch); err != nil {
			return err
		}
		if err := m.goTool(ctx, arch, "build", "-o", at("golang"), "./test/cases/testdata/runtimes/golang"); err != nil || foreign {
			return err
		}
		b.beside = append(b.beside, at("keepalive"))
		return command(ctx, "gcc", "-O2", "-static", "-o", at("keepalive"), filepath.Join(m.top, "test/cases/testdata/runtimes/keepalive.c"))
	case judge:
		b.beside = []string{agent.path}
	case commands:
		b.beside = []string{at("inside")}
		if err := m.goTool(ctx, arch, "build", "-o", at("inside"), "./cmd/sockhealth/testdata/inside"); err != nil || foreign {
			return err
		}
		runc, err := exec.LookPath("runc")
		if err != nil {
			return fmt.Errorf("find runc for the guests: %w [install the package runc]", err)
		}
		b.installed, err = withLibraries(ctx, runc)
		return err
	}
	return nil
}

// withLibraries returns a program and the libraries that it needs.
func withLibraries(ctx context.Context, path string) ([]string, error) {
	out, err := output(ctx, exec.CommandContext(ctx, "ldd", path))
	if err != nil {
		return nil, err
	}
	files := []string{path}
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") {
			files = append(files, word)
		}
	}
	return files, nil
}

// bare is what tests lack on purpose where nothing stands beside them.
const bare = "go,c,java,node,python,runc"

// lacking names what tests lack on purpose in the guests of an architecture.
func lacking(arch string) string {
	if arch != runtime.GOARCH {
		return "c,java,node,python,runc" // the first and the last are made for this machine, or are its own
	}
	return "java,node,python"
}
