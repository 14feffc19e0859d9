// SPDX-License-Identifier: Apache-2.0

package wait

import (
	"testing"
	"time"
)

// TestWithin: what is there is in time, although the limit is over, too; what is not
// there is waited for, and no longer than the limit.
func TestWithin(t *testing.T) {
	for range 1000 {
		there := make(chan int, 1)
		there <- 7
		if v, ok := Within(there, -time.Second); !ok || v != 7 {
			t.Fatalf("there: %d, %t", v, ok)
		}
	}
	if v, ok := Within(make(chan int), time.Millisecond); ok {
		t.Errorf("never: %d", v)
	}
	comes := make(chan int)
	go func() { comes <- 8 }()
	if v, ok := Within(comes, time.Minute); !ok || v != 8 {
		t.Errorf("comes: %d, %t", v, ok)
	}
	closed := make(chan struct{})
	close(closed)
	if _, ok := Within(closed, 0); !ok {
		t.Error("closed")
	}
}
