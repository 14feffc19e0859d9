// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// NoDiagDestroy makes inet_diag what it is in a kernel that was built without
// CONFIG_INET_DIAG_DESTROY, until the test ends: tcp_diag is loaded with nothing where
// its handler has the function that destroys, which is all that the option does there.
// It takes a virtual machine of the test's own, and skips the test elsewhere, and where
// the machine lacks tcp_diag on purpose.
func NoDiagDestroy(t testing.TB) {
	t.Helper()
	if Without("inet_diag") {
		t.Skip("needs tcp_diag")
	}
	NeedModule(t, "tcp_diag") // and what it depends on
	found, err := filepath.Glob("/lib/modules/*/tcp_diag.ko")
	if err != nil || len(found) != 1 {
		t.Fatalf("found %q for tcp_diag (%v)", found, err)
	}
	module, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	if module, err = nullify(module, "tcp_diag_handler", "tcp_diag_destroy"); err != nil {
		t.Fatal(err)
	}
	unload := func() error { return unix.DeleteModule("tcp_diag", unix.O_NONBLOCK) }
	if err := unload(); err != nil {
		t.Fatalf("unload tcp_diag: %v", err)
	}
	if err := unix.InitModule(module, ""); err != nil {
		t.Fatalf("load tcp_diag without destroy: %v", err)
	}
	t.Cleanup(func() {
		if err := unload(); err != nil { // the kernel loads its own when it is asked for
			t.Errorf("unload tcp_diag without destroy: %v", err)
		}
	})
}

// nullify returns a module with a null pointer where an object of it points to a
// function. Its signature, which would be wrong, is cut off.
func nullify(module []byte, object, function string) ([]byte, error) {
	module = bytes.TrimSuffix(bytes.Clone(module), []byte("~Module signature appended~\n"))
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	var where, what elf.Symbol
	for _, s := range symbols {
		switch s.Name {
		case object:
			where = s
		case function:
			what = s
		}
	}
	if where.Size == 0 || what.Size == 0 {
		return nil, fmt.Errorf("module has no %s or no %s", object, function)
	}
	for _, s := range f.Sections {
		if s.Type != elf.SHT_RELA || s.Info != uint32(where.Section) {
			continue
		}
		for at := s.Offset; at+24 <= s.Offset+s.FileSize; at += 24 {
			var rel elf.Rela64
			if _, err := binary.Decode(module[at:], f.ByteOrder, &rel); err != nil {
				return nil, err
			}
			if rel.Off < where.Value || rel.Off >= where.Value+where.Size || !pointsTo(symbols, rel, what) {
				continue
			}
			f.ByteOrder.PutUint64(module[at+8:], 0) // R_X86_64_NONE, and that of arm64
			return module, nil
		}
	}
	return nil, errors.New(object + " does not point to " + function)
}

// pointsTo reports whether a relocation means a symbol, by itself or by its section.
func pointsTo(symbols []elf.Symbol, rel elf.Rela64, what elf.Symbol) bool {
	n := elf.R_SYM64(rel.Info)
	if n == 0 || int(n) > len(symbols) {
		return false
	}
	s := symbols[n-1]
	return s.Section == what.Section && s.Value+uint64(rel.Addend) == what.Value
}
