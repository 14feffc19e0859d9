// SPDX-License-Identifier: Apache-2.0

package census

import (
	"container/list"

	"github.com/sockhealth/sockhealth/internal/container"
)

// memory keeps the last that were used.
type memory struct {
	most  int
	order *list.List // of entries, the last used in front
	by    map[uint64]*list.Element
}

type entry struct {
	id  uint64
	who container.ID
}

func newMemory(most int) memory {
	return memory{most: most, order: list.New(), by: make(map[uint64]*list.Element)}
}

// get returns what is kept of an id, and keeps it for longer.
func (m *memory) get(id uint64) (container.ID, bool) {
	e := m.by[id]
	if e == nil {
		return container.ID{}, false
	}
	m.order.MoveToFront(e)
	return e.Value.(entry).who, true
}

// put keeps it, and forgets what was not used for longest where that is too much.
func (m *memory) put(id uint64, who container.ID) {
	if e := m.by[id]; e != nil {
		e.Value = entry{id, who}
		m.order.MoveToFront(e)
		return
	}
	m.by[id] = m.order.PushFront(entry{id, who})
	if m.order.Len() > m.most {
		last := m.order.Back()
		m.order.Remove(last)
		delete(m.by, last.Value.(entry).id)
	}
}
