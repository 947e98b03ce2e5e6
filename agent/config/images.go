package config

import (
	"strings"

	"github.com/distribution/reference"
	"k8s.io/apimachinery/pkg/api/resource"
)

const allowlisted = "NeverVerifyAllowlistedImages"

// parallelImagePulls are made at one time where the file says nothing.
const parallelImagePulls = 10

// ParallelImagePulls is how many images are pulled at one time.
func (c *Config) ParallelImagePulls() int {
	switch {
	case c.SerializeImagePulls:
		return 1
	case c.MaxParallelImagePulls == 0:
		return parallelImagePulls
	}
	return c.MaxParallelImagePulls
}

// validateImages checks who may use images that are on the node.
func (c *Config) validateImages(bad func(field, format string, args ...any)) {
	if c.MaxParallelImagePulls < 0 {
		bad("maxParallelImagePulls", "%d: at least 1", c.MaxParallelImagePulls)
	}
	if c.MaxParallelImagePulls > 1 && c.SerializeImagePulls {
		bad("maxParallelImagePulls", "%d and serializeImagePulls: true: give one of them", c.MaxParallelImagePulls)
	}
	if q, err := resource.ParseQuantity(c.P2PImagesUploadRate); err != nil || q.Value() < 0 {
		bad("p2pImagesUploadRate", "%q is no number of bytes a second, as 100Mi; 0: no limit", c.P2PImagesUploadRate)
	}
	if (c.ImageCredentialProviderConfig == "") != (c.ImageCredentialProviderBinDir == "") {
		bad("imageCredentialProviderConfig", "give it and imageCredentialProviderBinDir, or neither")
	}
	switch c.ImagePullCredentialsVerificationPolicy {
	case "", "NeverVerify", "NeverVerifyPreloadedImages", allowlisted, "AlwaysVerify":
	default:
		bad("imagePullCredentialsVerificationPolicy", "%q: use NeverVerify, NeverVerifyPreloadedImages, %s or AlwaysVerify",
			c.ImagePullCredentialsVerificationPolicy, allowlisted)
	}
	if len(c.PreloadedImagesVerificationAllowlist) > 0 && c.ImagePullCredentialsVerificationPolicy != allowlisted {
		bad("preloadedImagesVerificationAllowlist",
			"only used with imagePullCredentialsVerificationPolicy: %s", allowlisted)
	}
	for _, entry := range c.PreloadedImagesVerificationAllowlist {
		name := entry
		if prefix, ok := strings.CutSuffix(entry, "/*"); ok {
			name = prefix + "/name"
		}
		named, err := reference.ParseNormalizedNamed(name)
		if err != nil || !reference.IsNameOnly(named) {
			bad("preloadedImagesVerificationAllowlist",
				`%q: must be an image's name without tag and digest, or a prefix of whole path segments that ends in "/*"`,
				entry)
		}
	}
}
