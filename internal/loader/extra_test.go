// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"testing"
)

// objects tell how often they were freed.
type objects struct{ freed int }

func (o *objects) Close() error {
	o.freed++
	return nil
}

func TestExtra(t *testing.T) {
	var e extra[*objects]
	loads := 0
	load := func() (*objects, error) {
		loads++
		return new(objects), nil
	}
	one, _ := e.get(load)
	two, err := e.get(load)
	if err != nil || one != two || loads != 1 {
		t.Errorf("loaded %d times, the same: %t, %v; want once", loads, one == two, err)
	}
	if err := e.close(); err != nil || one.freed != 1 {
		t.Errorf("freed %d times, %v; want once", one.freed, err)
	}
}

func TestExtraThatDoesNotLoad(t *testing.T) {
	var e extra[*objects]
	for range 2 {
		if _, err := e.get(func() (*objects, error) { return nil, ErrUnsupported }); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%v, want ErrUnsupported", err)
		}
	}
	if err := e.close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// What was never needed is not loaded to be freed, nor after.
func TestExtraNeverNeeded(t *testing.T) {
	var e extra[*objects]
	if err := e.close(); err != nil {
		t.Errorf("close: %v", err)
	}
	_, err := e.get(func() (*objects, error) {
		t.Error("loaded after it was closed")
		return new(objects), nil
	})
	if !errors.Is(err, ErrClosed) {
		t.Errorf("%v, want ErrClosed", err)
	}
}
