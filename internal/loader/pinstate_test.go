// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The number that tells layouts apart is the one of the C side.
func TestLayout(t *testing.T) {
	b, err := os.ReadFile("../../bpf/sockhealth.h")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("#define SH_LAYOUT %d\n", layout); !strings.Contains(string(b), want) {
		t.Errorf("bpf/sockhealth.h does not say %q", want)
	}
}

func TestName(t *testing.T) {
	for _, s := range []string{"", "buffer", strings.Repeat("x", 63)} {
		if got := newName(s).String(); got != s {
			t.Errorf("%q comes back as %q", s, got)
		}
	}
}
