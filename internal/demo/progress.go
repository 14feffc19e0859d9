// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// How often the line is shown.
const (
	onTerminal = 200 * time.Millisecond
	elsewhere  = 10 * time.Second
)

// progress shows one line that changes.
type progress struct {
	out      io.Writer
	terminal bool
	width    int
	every    time.Duration
	next     time.Duration // when to show it again
	dirty    bool          // the cursor stands behind a line that will be written over
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out, every: elsewhere}
	if p.width = width(out); p.width > 0 {
		p.terminal, p.every = true, onTerminal
	}
	return p
}

// width returns the width of a terminal, 0 where out is none.
func width(out io.Writer) int {
	f, ok := out.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	if size.Col == 0 { // a terminal that does not know
		return 80
	}
	return int(size.Col)
}

// show shows the line where it is time to.
func (p *progress) show(elapsed time.Duration, line func() string) {
	if elapsed < p.next {
		return
	}
	p.next = elapsed - elapsed%p.every + p.every
	text := line()
	if !p.terminal {
		fmt.Fprintln(p.out, text)
		return
	}
	if len(text) >= p.width { // a line that wraps cannot be written over
		text = text[:p.width-1]
	}
	fmt.Fprintf(p.out, "\r%s\x1b[K", text)
	p.dirty = true
}

// end removes the line from a terminal.
func (p *progress) end() {
	if p.dirty {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.dirty = false
	}
}
