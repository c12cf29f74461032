// Memory that omniORB itself loses, with any transport: the programs of these tests list it for
// LeakSanitizer.
#if defined(__SANITIZE_ADDRESS__)
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:omniINSPOA\n"
         "leak:gain_poa\n"
         "leak:omniIOR::getIORInfo\n";  // of references that are cut short
}
extern "C" const char* __lsan_default_options();
extern "C" const char* __lsan_default_options() { return "print_suppressions=0"; }
#endif
