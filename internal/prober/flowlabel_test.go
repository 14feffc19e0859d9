// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

func TestFlowLabel(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the figures are those of a little-endian machine")
	}
	// rotated by 16 the hash is 0x56781234, in memory 34 12 78 56: the label
	// is the last five digits of 34127856.
	for _, tt := range []struct {
		rules labels
		hash  uint32
		want  uint32
	}{
		{labels{auto: 0}, 0x12345678, 0},
		{labels{auto: 1}, 0x12345678, 0x27856},
		{labels{auto: 1, stateless: true}, 0x12345678, 0xa7856},
		{labels{auto: 2}, 0x12345678, 0},
		{labels{auto: 2, stateless: true}, 0x12345678, 0},
		{labels{auto: 3}, 0x12345678, 0x27856},
		{labels{auto: 1}, 0xffffffff, 0xfffff},
	} {
		if got := tt.rules.of(tt.hash); got != tt.want {
			t.Errorf("%+v.of(%#x) = %#x, want %#x", tt.rules, tt.hash, got, tt.want)
		}
	}
}

func TestSysctl(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]int{"3\n": 3, "0": 0, "": 7, "x\n": 7, "1 2\n": 7} {
		path := filepath.Join(dir, "v")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := sysctl(path, 7); got != want {
			t.Errorf("sysctl of %q = %d, want %d", text, got, want)
		}
	}
	if got := sysctl(filepath.Join(dir, "none"), 7); got != 7 {
		t.Errorf("sysctl of no file = %d, want 7", got)
	}
}
