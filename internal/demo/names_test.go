// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

func TestNameIsPointed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	if _, err := resolve(path, peerName); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	for _, addr := range []netip.Addr{netip.MustParseAddr("10.91.2.2"), netip.MustParseAddr("10.91.3.2")} {
		if err := pointName(path, addr); err != nil {
			t.Fatal(err)
		}
		if got, err := resolve(path, peerName); got != addr || err != nil {
			t.Errorf("%s, %v, want %s", got, err, addr)
		}
	}
	if got, err := resolve(path, "other"); err == nil {
		t.Errorf("another name is at %s", got)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("%d files left, %v", len(entries), err)
	}
}
