package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
)

// Limits of an image archive.
const (
	maxArchiveEntries = 100_000
	maxArchiveName    = 4096 // bytes, as a path has at most (PATH_MAX)
)

// guarded hands an archive through and fails where it breaks a limit: the
// library keeps the name of each of its entries.
func guarded(r io.Reader) io.ReadCloser {
	pr, pw := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := checkArchive(tar.NewReader(pr))
		if err == nil {
			_, err = io.Copy(io.Discard, pr)
		}
		pr.CloseWithError(err)
	}()
	return &guard{Reader: io.TeeReader(r, pw), pipe: pw, done: done}
}

type guard struct {
	io.Reader
	pipe *io.PipeWriter
	done chan struct{}
}

func (g *guard) Close() error {
	err := g.pipe.Close()
	<-g.done
	return err
}

func checkArchive(t *tar.Reader) error {
	for n := 1; ; n++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("image archive: %w", err)
		}
		if n > maxArchiveEntries {
			return fmt.Errorf("image archive has more than %d entries", maxArchiveEntries)
		}
		if len(h.Name) > maxArchiveName || len(h.Linkname) > maxArchiveName {
			return fmt.Errorf("image archive: a name has more than %d bytes", maxArchiveName)
		}
	}
}
