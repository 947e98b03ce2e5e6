package btrfs

import (
	"encoding/binary"
	"errors"
	"os"
	"unsafe"
)

// Trees of the file system, and the kinds of what is in them.
const (
	rootTree  = 1
	quotaTree = 8

	rootRef       = 156 // subvolume -> one that lies in it
	groupRelation = 246 // group -> one that it is in, or that is in it
)

// searchArgs is struct btrfs_ioctl_search_args.
type searchArgs struct {
	tree                       uint64
	minObject, maxObject       uint64
	minOffset, maxOffset       uint64
	minTransaction, maxTransid uint64
	minKind, maxKind           uint32
	items, _                   uint32
	_                          [4]uint64
	found                      [foundSize]byte
}

const (
	foundSize  = 4096 - 104
	headerSize = 32
)

var errTree = errors.New("btrfs: what the kernel found in a tree is not understood")

// search finds up to a page of what is under a key, from an offset on, and returns
// their offsets, in order.
func search(f *os.File, tree, object uint64, kind uint32, from uint64) ([]uint64, error) {
	a := searchArgs{tree: tree, minObject: object, maxObject: object, minOffset: from, maxOffset: ^uint64(0),
		maxTransid: ^uint64(0), minKind: kind, maxKind: kind, items: 1 << 10}
	if err := call(f, "search", treeSearch, unsafe.Pointer(&a)); err != nil {
		return nil, err
	}
	return offsets(a.found[:], a.items, object, kind)
}

// offsets are those in what a search found.
func offsets(found []byte, items uint32, object uint64, kind uint32) ([]uint64, error) {
	le := binary.LittleEndian
	var out []uint64
	for range items {
		if len(found) < headerSize {
			return nil, errTree
		}
		size := le.Uint32(found[28:])
		other := le.Uint64(found[8:]) != object || le.Uint32(found[24:]) != kind
		if other || uint64(size) > uint64(len(found)-headerSize) {
			return nil, errTree
		}
		out = append(out, le.Uint64(found[16:]))
		found = found[headerSize+int(size):]
	}
	return out, nil
}

// all finds everything under a key, at most so many.
func all(f *os.File, tree, object uint64, kind uint32, most int) ([]uint64, error) {
	var out []uint64
	for from := uint64(0); ; {
		page, err := search(f, tree, object, kind, from)
		if err != nil || len(page) == 0 {
			return out, err
		}
		if out = append(out, page...); len(out) > most {
			return nil, ErrTooMany
		}
		if from = page[len(page)-1] + 1; from == 0 {
			return out, nil
		}
	}
}
