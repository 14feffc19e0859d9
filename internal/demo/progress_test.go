// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func show(p *progress, every time.Duration, times int) {
	for n := range times {
		p.show(time.Duration(n)*every, func() string { return "a line of 20 letters" })
	}
	p.end()
}

func TestProgressOutsideATerminalIsALineNowAndThen(t *testing.T) {
	var b bytes.Buffer
	show(newProgress(&b), 100*time.Millisecond, 201) // at 0, 10 and 20 s
	if want := "a line of 20 letters\na line of 20 letters\na line of 20 letters\n"; b.String() != want {
		t.Errorf("%q", b.String())
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if newProgress(f).terminal {
		t.Error("a file is a terminal")
	}
}

func TestProgressOnATerminalIsOneLine(t *testing.T) {
	var b bytes.Buffer
	show(&progress{out: &b, terminal: true, width: 10, every: onTerminal}, 100*time.Millisecond, 3)
	if want := "\ra line of\x1b[K\ra line of\x1b[K\r\x1b[K"; b.String() != want {
		t.Errorf("%q", b.String())
	}
}
