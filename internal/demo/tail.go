// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"sync"
)

// tailSize bounds what is kept of one process's messages.
const tailSize = 16 << 10

// tail keeps the end of what is written to it.
type tail struct {
	mu      sync.Mutex
	kept    []byte
	dropped bool
}

// Write keeps p and never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - tailSize; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
		t.dropped = true
	}
	return len(p), nil
}

// String returns what was kept, from the beginning of a line.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := t.kept
	if t.dropped {
		if _, rest, ok := bytes.Cut(text, []byte("\n")); ok {
			text = rest
		}
	}
	return string(text)
}

// lines calls fn with each whole line written to it, without its end.
type lines struct {
	fn   func([]byte)
	rest []byte
}

// Write never fails.
func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		l.fn(line)
		l.rest = rest
	}
}
