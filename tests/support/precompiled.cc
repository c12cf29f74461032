// The headers that nearly every test includes are compiled with this: tests/CMakeLists.txt.
