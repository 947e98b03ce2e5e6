package quota

// AnnotationLimit is that of a container, as the runtime gets it, which says how many
// bytes it may write beside its volumes. The CRI has no field for it.
const AnnotationLimit = "io.shoal-project.container.ephemeral-storage-limit"

// beyond is how much more than its limit a directory can take, beside a part of the
// limit: what a file system keeps about files is counted too. Whose files take more than
// the limit is evicted.
const (
	beyond     = 4 << 20
	beyondPart = 64
)

// Hard is what a directory of a pod can take whose files are limited, 0 for any.
func Hard(limit int64) int64 {
	if limit <= 0 {
		return 0
	}
	if hard := limit + limit/beyondPart + beyond; hard > limit {
		return hard
	}
	return 0 // more than there are numbers for
}
