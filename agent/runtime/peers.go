package runtime

import "github.com/shoal-project/shoal/agent/image"

// Images is the store of images.
func (r *Runtime) Images() *image.Store { return r.images }
