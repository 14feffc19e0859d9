// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
)

func TestDestroyResult(t *testing.T) {
	for result, want := range map[int32]error{
		0: nil, -int32(unix.ENOENT): ErrNotFound, -int32(unix.EOPNOTSUPP): unix.EOPNOTSUPP,
	} {
		err := destroyResult(conn.ID{}, result)
		if !errors.Is(err, want) || want == unix.EOPNOTSUPP && errors.Is(err, ErrNotFound) {
			t.Errorf("%d: %v, want %v", result, err, want)
		}
	}
}

// Before Linux 6.5 every id gets the same answer, and it is not "not found".
func TestDestroyUnsupported(t *testing.T) {
	p := new(Programs)
	p.destroy.get(func() (*destroyObjects, error) { return nil, lacking(kernel.BPFDestroy, unix.EINVAL) })
	errs := p.Destroy(make([]Condemned, 3))
	if len(errs) != 3 {
		t.Fatalf("%d results, want 3", len(errs))
	}
	for _, err := range errs {
		if !errors.Is(err, ErrUnsupported) || errors.Is(err, ErrNotFound) {
			t.Errorf("got %v, want ErrUnsupported", err)
		}
	}
}

// pauses is a read of an iterator that pauses before each of its parts.
type pauses struct {
	parts  []string
	paused bool
}

func (p *pauses) Read(b []byte) (int, error) {
	if p.paused = !p.paused; p.paused {
		return 0, fmt.Errorf("read: %w", unix.EAGAIN)
	}
	if len(p.parts) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.parts[0])
	p.parts = p.parts[1:]
	return n, nil
}

// A walk over more than a million sockets that writes nothing goes on.
func TestOnward(t *testing.T) {
	got, err := io.ReadAll(onward{&pauses{parts: []string{"a", "b"}}})
	if err != nil || string(got) != "ab" {
		t.Errorf("read %q, %v", got, err)
	}
	broken := io.MultiReader(strings.NewReader("a"), errReader{})
	if _, err := io.ReadAll(onward{broken}); !errors.Is(err, unix.EIO) {
		t.Errorf("got %v, want EIO", err)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, unix.EIO }
