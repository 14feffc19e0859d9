// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns/registry"
)

// A refresh on a node with 500 processes, of which each tenth has a namespace of
// its own, and 20,000 open files.
func BenchmarkRefresh(b *testing.B) {
	p := loadertest.Load(b)
	var files []*os.File
	for range 40 {
		f, err := os.Open("/dev/null")
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	for i := range 500 {
		cmd := exec.Command("cat")
		cmd.ExtraFiles = files
		if i%10 == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		}
		started(b, cmd)
	}
	for name, w := range map[string]registry.Walker{"walks": p, "proc": nil} {
		b.Run(name, func(b *testing.B) {
			r := newRegistry(b, w)
			for b.Loop() {
				refresh(b, r)
			}
		})
	}
	b.Run("threads", func(b *testing.B) {
		for b.Loop() {
			_ = p.Residents(nil, func(int, uint32) {})
		}
	})
	b.Run("files", func(b *testing.B) {
		for b.Loop() {
			_ = p.Holders(nil, func(int, int, uint32) {})
		}
	})
}
