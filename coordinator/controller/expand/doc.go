// Package expand tells of claims that ask for more than their volume has: a driver's
// resizer is to make it larger, and until then an event on the claim says so. Of a
// volume of a cloud that drivers have taken over the claim gets the name of the driver
// whose resizer it is (volume.kubernetes.io/storage-resizer), as upstream's expand
// controller.
package expand
