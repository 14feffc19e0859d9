// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bytes"
	"os"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// The kernel writes nothing beyond a query of the programs at a cgroup.
func TestProgQueryRoom(t *testing.T) {
	labtest.Root(t)
	dir, err := os.Open(labtest.Cgroup(t).Path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	var room struct {
		query  progQuery
		beyond [128]byte
	}
	for i := range room.beyond {
		room.beyond[i] = 0xa5
	}
	was := room.beyond
	ids := make([]ebpf.ProgramID, 8)
	room.query = progQuery{
		target: uint32(dir.Fd()), typ: uint32(ebpf.AttachCGroupSockOps), ids: unsafe.Pointer(&ids[0]), count: uint32(len(ids)),
	}
	if errno := room.query.ask(); errno != 0 {
		t.Fatal(errno)
	}
	if !bytes.Equal(room.beyond[:], was[:]) {
		t.Errorf("beyond it there is %x", room.beyond)
	}
}
