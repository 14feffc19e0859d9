// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// rowsAtOnce is how many sockets are encoded before they are written: about
// 200 KiB.
const rowsAtOnce = 256

// sockets answers GET /v1/sockets. A node can have a million of them: they are
// encoded in portions, and the client has the usual time for each.
func (h *admin) sockets(w http.ResponseWriter, r *http.Request) {
	if !plain(w, r) {
		return
	}
	list, err := h.of.Sockets(r.Context())
	writeSome(h, w, r, list, err)
}

// unmanaged answers GET /v1/sockets/unmanaged.
func (h *admin) unmanaged(w http.ResponseWriter, r *http.Request) {
	if !plain(w, r) {
		return
	}
	list, err := h.of.Unmanaged(r.Context())
	writeSome(h, w, r, list, err)
}

// writeSome writes a list of which err says why some may be missing. Where nothing could be
// listed at all it is nil, and err the answer.
func writeSome[T any](h *admin, w http.ResponseWriter, r *http.Request, list []T, err error) {
	incomplete := ""
	switch {
	case r.Context().Err() != nil: // the client went away
		return
	case err != nil && list == nil:
		h.answer(w, r, nil, err)
		return
	case err != nil:
		incomplete = err.Error()
	}
	writeList(w, list, incomplete)
}

// writeList writes a list of sockets in portions.
func writeList[T any](w http.ResponseWriter, list []T, incomplete string) {
	w.Header().Set("Content-Type", "application/json")
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"schema":%d,"sockets":[`, Schema)
	for i := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		row, _ := json.Marshal(&list[i]) // words and numbers: cannot fail
		b.Write(row)
		if i%rowsAtOnce == rowsAtOnce-1 && portion(w, &b) != nil {
			return // the client went away, or reads nothing
		}
	}
	b.WriteByte(']')
	if incomplete != "" {
		text, _ := json.Marshal(incomplete) // a string: cannot fail
		fmt.Fprintf(&b, `,"incomplete":%s`, text)
	}
	b.WriteString("}\n")
	_ = portion(w, &b)
}

// portion writes a part of an answer and empties it.
func portion(w http.ResponseWriter, b *bytes.Buffer) error {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeWithin))
	_, err := b.WriteTo(w)
	return err
}
