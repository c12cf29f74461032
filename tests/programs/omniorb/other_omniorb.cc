// An omniORB that says it is another version, for the test of the refusal: preloaded in front of
// the real one.
namespace omniORB {
__attribute__((visibility("default"))) const char* versionString() { return "9.9.9"; }
}  // namespace omniORB
