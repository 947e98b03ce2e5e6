// Package beneath is the one way in which the agent walks paths that a
// container, an image or another writer of a volume could have changed: below
// an opened directory, by descriptors.
//
// Its rules:
//   - No path leads out of the directory: openat2(2) resolves it with
//     RESOLVE_BENEATH, or with RESOLVE_IN_ROOT in images, whose links are
//     absolute. Links are followed only where the caller says which.
//   - A file is held by a descriptor of its path (O_PATH) before anything is
//     done with it. Data are read only from regular files, so that neither a
//     FIFO, a device nor a lease (fcntl(2), F_SETLEASE) can make the agent wait.
//   - Modes and owners are changed by descriptor, never by a path that could
//     lead elsewhere a moment later.
//   - Reading has a limit, and walking holds a bounded number of descriptors,
//     however deep the tree is.
//   - No walk enters what is mounted below its directory.
//
// The path of the opened directory itself is one that only root can change:
// callers pass directories of the agent, or what the node's administrator named.
package beneath
